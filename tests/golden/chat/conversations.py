"""Random conversations, as data sets have them and as they should not be."""
import random

WORDS = ["hello", "world", "<b>bold</b>", "naïve", "日本語", "🙂", "it's", 'a "quote"', "x & y", "1 < 2", "\\n", "{{ x }}",
         "{% if %}", "<think>", "</think>", "a\tb", "line\nbreak", "\r\n", "ß", "É", "</tool_call>", "<|im_end|>", "%d"]
KEYS = ["city", "unit", "n", "Zeta", "alpha", "nested", "empty", "ünï", "with space"]


def text(rng, empty=0.08):
    if rng.random() < empty:
        return rng.choice(["", " ", "\n", "  \n "])
    out = " ".join(rng.choice(WORDS) for _ in range(rng.randint(1, 6)))
    return rng.choice(["", "", "", " ", "\n", "\n\n"]) + out + rng.choice(["", "", "", " ", "\n"])


def value(rng, depth=0):
    kind = rng.randint(0, 9 if depth < 2 else 6)
    if kind <= 2:
        return text(rng)
    if kind == 3:
        return rng.choice([0, 1, -7, 12345678901, 42])
    if kind == 4:
        return rng.choice([0.5, 1e-7, 1.0, -2.25, 3.14159, 1e22, 123456789.125, 1e16, 0.1])
    if kind == 5:
        return rng.choice([True, False])
    if kind == 6:
        return None
    if kind <= 8:
        return {k: value(rng, depth + 1) for k in rng.sample(KEYS, rng.randint(0, 4))}
    return [value(rng, depth + 1) for _ in range(rng.randint(0, 3))]


def schema(rng, depth=0):
    kinds = ["string", "integer", "number", "boolean", "array", "object", ["string", "null"]]
    kind = rng.choice(kinds if depth < 2 else kinds[:4])
    out = {"type": kind}
    if rng.random() < 0.7:
        out["description"] = text(rng)
    if kind == "string" and rng.random() < 0.3:
        out["enum"] = ["a", "B", "c d"]
    if rng.random() < 0.15:
        out["default"] = value(rng, 1)
    if rng.random() < 0.1:
        out["nullable"] = rng.choice([True, False])
    if kind == "array":
        out["items"] = schema(rng, depth + 1)
    if kind == "object":
        out["properties"] = {k: schema(rng, depth + 1) for k in rng.sample(KEYS, rng.randint(0, 3))}
        if rng.random() < 0.5:
            out["required"] = list(out["properties"])[:1]
    return out


def tool(rng):
    function = {"name": rng.choice(["get_weather", "add", "browser.search", "f"]), "description": text(rng)}
    if rng.random() < 0.9:
        names = rng.sample(KEYS, rng.randint(0, 4))
        function["parameters"] = {"type": "object", "properties": {k: schema(rng) for k in names}}
        if rng.random() < 0.6:
            function["parameters"]["required"] = names[:2]
    if rng.random() < 0.2:
        function["return"] = schema(rng)
    return {"type": "function", "function": function} if rng.random() < 0.9 else function


def tool_call(rng):
    arguments = {k: value(rng) for k in rng.sample(KEYS, rng.randint(0, 3))}
    call = {"type": "function", "function": {"name": rng.choice(["get_weather", "add"]), "arguments": arguments}}
    if rng.random() < 0.3:
        call["id"] = rng.choice(["abcdefghi", "call_1", "123456789"])
    if rng.random() < 0.05:
        call["function"]["arguments"] = '{"city": "x"}'
    return call if rng.random() < 0.95 else call["function"]


def content(rng):
    if rng.random() < 0.15:
        return [{"type": "text", "text": text(rng)} for _ in range(rng.randint(0, 2))]
    return text(rng)


def assistant(rng, tools):
    message = {"role": "assistant", "content": content(rng)}
    if rng.random() < 0.15:
        message["content"] = "<think>\n" + text(rng) + "\n</think>\n\n" + text(rng)
    if rng.random() < 0.2:
        message[rng.choice(["reasoning_content", "thinking", "reasoning"])] = text(rng)
    if tools and rng.random() < 0.5:
        message["tool_calls"] = [tool_call(rng) for _ in range(rng.choice([1, 1, 1, 2, 0]))]
        if rng.random() < 0.5:
            message["content"] = rng.choice(["", None])
        if rng.random() < 0.3:
            del message["content"]
    return message


def conversation(rng):
    messages, tools = [], rng.random() < 0.4
    if rng.random() < 0.5:
        messages.append({"role": rng.choice(["system", "system", "system", "developer"]), "content": content(rng)})
    for _ in range(rng.randint(0, 4)):
        messages.append({"role": "user", "content": content(rng)})
        messages.append(assistant(rng, tools))
        while messages[-1].get("tool_calls"):
            for call in messages[-1]["tool_calls"]:
                reply = {"role": "tool", "content": rng.choice([content(rng), value(rng)])}
                if rng.random() < 0.5:
                    reply["name"] = call.get("function", call)["name"]
                if "id" in call or rng.random() < 0.2:
                    reply["tool_call_id"] = call.get("id", "abcdefghi")
                messages.append(reply)
            messages.append(assistant(rng, rng.random() < 0.3))
    if rng.random() < 0.4:
        messages.append({"role": "user", "content": content(rng)})
    if rng.random() < 0.06 and messages:  # what should not be there
        spoil(rng, messages)
    variables = {"messages": messages, "tools": [tool(rng) for _ in range(rng.randint(1, 3))] if tools else None,
                 "documents": None, "add_generation_prompt": rng.random() < 0.5}
    for name, values in [("enable_thinking", [True, False]), ("date_string", ["1 Jan 2020"]),
                         ("builtin_tools", [["brave_search", "code_interpreter"], ["python", "browser"]]),
                         ("tools_in_user_message", [False, True]), ("reasoning_effort", ["low", "high"]),
                         ("model_identity", ["You are X."]), ("add_vision_id", [True]), ("keep_past_thinking", [True]),
                         ("preserve_thinking", [True]), ("clear_thinking", [False]), ("thinking", [True])]:
        if rng.random() < 0.12:
            variables[name] = rng.choice(values)
    if rng.random() < 0.1:
        variables["documents"] = [{"title": text(rng), "text": text(rng)}]
    return variables


def spoil(rng, messages):
    message = rng.choice(messages)
    what = rng.randint(0, 5)
    if what == 0:
        message.pop("content", None)
    elif what == 1:
        message["content"] = rng.choice([None, 7, {"a": 1}, [7], True])
    elif what == 2:
        message.pop("role")
    elif what == 3:
        message["role"] = "stranger"
    elif what == 4:
        messages.insert(0, dict(messages[-1]))
    else:
        message["tool_calls"] = rng.choice([None, "text", [{}], {}])


def conversations(seed, count):
    rng = random.Random(seed)
    return [conversation(rng) for _ in range(count)]
