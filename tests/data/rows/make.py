"""Makes the files of this folder: the same 12 rows in every format that data sets come in, as pyarrow 26, polars 2 and
pandas 3 write them (pip install pyarrow polars pandas), and rows.jsonl, what must be read of each. Columns of other types
(a date, bytes) are beside them and must be left out.

    python3 tests/data/rows/make.py"""

import datetime
import gzip
import json
import os

import pandas
import polars
import pyarrow as pa
import pyarrow.ipc as ipc
import pyarrow.parquet as pq

os.chdir(os.path.dirname(os.path.abspath(__file__)))

TEXTS = ["", "plain", 'a "quoted", text\nover two lines', "wörld 日本 😀", "x" * 70, "\ttab"]


def message(i):
    return {"role": ["system", "user", "assistant"][i % 3], "content": None if i % 5 == 4 else TEXTS[i % 6],
            "tool_calls": [{"name": "f", "arguments": TEXTS[k]} for k in range(i % 3)] if i % 4 == 1 else None}


def row(i):
    return {"id": (-1) ** i * (2**63 - 1 - i) if i < 4 else i, "small": None if i % 3 == 0 else i - 6, "word": 2**32 - 1 - i,
            "text": TEXTS[i % 6], "optional": None if i % 2 else TEXTS[(i + 1) % 6], "flag": None if i == 7 else i % 3 == 1,
            "score": None if i == 2 else i / 7 - 1e9, "single": i / 3, "half": i / 4, "ids": list(range(i, i * i % 17 + i)),
            "holes": None if i == 5 else [None if k == i % 3 else k for k in range(i % 4)],
            "messages": [message(i + k) for k in range(i % 5)],
            "deep": None if i == 3 else {"a": None if i % 4 == 0 else TEXTS[i % 6], "b": {"c": i, "l": [[TEXTS[i % 6]] * k for k in range(i % 3)]}},
            "nothing": None, "color": ["red", "green", "blue"][i % 3], "day": datetime.date(2026, 3, 1), "bytes": b"\xff\x00"}


SCHEMA = pa.schema([
    ("id", pa.int64()), ("small", pa.int8()), ("word", pa.uint32()), ("text", pa.string()), ("optional", pa.large_string()),
    ("flag", pa.bool_()), ("score", pa.float64()), ("single", pa.float32()), ("half", pa.float16()), ("ids", pa.list_(pa.int32())),
    ("holes", pa.large_list(pa.int16())),
    ("messages", pa.list_(pa.struct([("role", pa.string()), ("content", pa.string()),
                                     ("tool_calls", pa.list_(pa.struct([("name", pa.string()), ("arguments", pa.string())])))]))),
    ("deep", pa.struct([("a", pa.string()), ("b", pa.struct([("c", pa.int64()), ("l", pa.list_(pa.list_(pa.string())))]))])),
    ("nothing", pa.null()), ("color", pa.dictionary(pa.int8(), pa.string())), ("day", pa.date32()), ("bytes", pa.binary()),
])
ENCODINGS = {"id": "DELTA_BINARY_PACKED", "small": "DELTA_BINARY_PACKED", "text": "DELTA_BYTE_ARRAY",
             "optional": "DELTA_LENGTH_BYTE_ARRAY", "score": "BYTE_STREAM_SPLIT", "single": "BYTE_STREAM_SPLIT", "flag": "RLE"}


def clean(value):
    if isinstance(value, dict):
        return {k: clean(v) for k, v in value.items() if v is not None and k not in ("day", "bytes")}
    return [clean(v) for v in value] if isinstance(value, list) else value


table = pa.Table.from_pylist([row(i) for i in range(12)], schema=SCHEMA)
rows = [clean(r) for r in table.to_pylist()]
with open("rows.jsonl", "w", encoding="utf-8") as out:
    out.writelines(json.dumps(r, ensure_ascii=False) + "\n" for r in rows)
with open("rows.json", "w", encoding="utf-8") as out:
    json.dump(rows, out, indent=1, ensure_ascii=False)

common = {"row_group_size": 5, "store_schema": False, "write_statistics": False}
for codec in ("snappy", "gzip", "zstd", "lz4"):
    pq.write_table(table, f"{codec}.parquet", compression=codec, **common)
pq.write_table(table, "v2.parquet", compression="zstd", data_page_version="2.0", data_page_size=20, **common)
pq.write_table(table, "plain.parquet", compression="none", use_dictionary=False, use_compliant_nested_type=False, **common)
pq.write_table(table.set_column(14, "color", table["color"].cast(pa.string())), "encodings.parquet", compression="none",
               use_dictionary=False, column_encoding=ENCODINGS, **common)
for name, codec in (("plain", None), ("lz4", "lz4"), ("zstd", "zstd")):
    options = ipc.IpcWriteOptions(compression=codec)
    with pa.OSFile(f"{name}.stream.arrow", "wb") as sink, ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=5)
with pa.OSFile("file.arrow", "wb") as sink, ipc.new_file(sink, table.schema) as writer:
    writer.write_table(table, max_chunksize=5)
frame = polars.from_arrow(table.set_column(14, "color", table["color"].cast(pa.string())))
frame.write_ipc("views.arrow", compression="zstd")  # texts as views, no messages before the footer
frame.write_parquet("polars.parquet")

texts = pandas.DataFrame([{"id": str(r["id"]), "text": r["text"], "optional": r.get("optional", "")} for r in rows])
texts.to_csv("rows.csv", index=False, lineterminator="\r\n")
with gzip.GzipFile("rows.tsv.gz", "wb", mtime=0) as out:
    out.write(b"\xef\xbb\xbf" + texts.to_csv(index=False, sep="\t").encode())
