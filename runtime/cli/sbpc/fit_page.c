/* fit_page.c: what sbpc fit found as a page: one file, in which a policy forbids whatever would be loaded,
 * and all scripts but the one that sorts and filters, by its hash. Without scripts the whole table is there.
 * Light or dark as the reader's browser is; all text is escaped. */
#include <stdio.h>
#include <string.h>

#include "frontends/formats/files/sha256.h"
#include "runtime/cli/sbpc/fit.h"

static const char style[] =
    ":root{color-scheme:light dark;--ink:#1c1e21;--paper:#fff;--faint:#d5d9de;--soft:#5b6470;--head:#f3f5f7;"
    "--yes:#13663b;--no:#b42318}\n"
    "@media(prefers-color-scheme:dark){:root{--ink:#e6e8ea;--paper:#16181b;--faint:#3a3f46;--soft:#a3acb8;"
    "--head:#22262b;--yes:#6fd39b;--no:#ff9b8f}}\n"
    "body{font:15px/1.45 system-ui,sans-serif;color:var(--ink);background:var(--paper);max-width:1200px;"
    "margin:2em auto;padding:0 1em}\n"
    "p{max-width:60em;color:var(--soft)}\n"
    "form{display:flex;flex-wrap:wrap;gap:.6em 1.4em;align-items:baseline;margin:1em "
    "0}form[hidden]{display:none}\n"
    "input,select{font:inherit;color:inherit;background:var(--paper);border:1px solid var(--faint);"
    "border-radius:4px;padding:.15em .4em}\n"
    "table{border-collapse:collapse;width:100%}\n"
    "th{position:sticky;top:0;background:var(--head);text-align:left;padding:0;white-space:nowrap}\n"
    "th button,th "
    "span{display:block;width:100%;font:inherit;font-weight:600;color:inherit;background:none;border:0;"
    "padding:.45em .7em;text-align:inherit}th button{cursor:pointer}\n"
    "th[aria-sort=ascending] button::after{content:' \\25b2'}th[aria-sort=descending] "
    "button::after{content:' "
    "\\25bc'}\n"
    "td{padding:.3em .7em;border-top:1px solid var(--faint);vertical-align:top}\n"
    "td:nth-child(-n+3){white-space:nowrap}.y,.n,.l{text-align:right;font-variant-numeric:tabular-nums}th.l{"
    "text-"
    "align:right}\n"
    ".y{color:var(--yes)}.n{color:var(--no)}small{display:block;max-width:20em;margin-left:auto;color:var(--"
    "soft);overflow-wrap:anywhere}td:nth-child(3) small{margin-left:0}\n"
    /* On a phone a row is a card: what it is of in one line, then a line for each length. */
    "@media(max-width:700px){table,tbody,tr,td{display:block}thead{display:none}"
    "tr{border-top:2px solid var(--faint);padding:.5em 0}tr[hidden]{display:none}td{border:0;padding:.1em 0;"
    "text-align:left}"
    "td:nth-child(-n+3){display:inline-block;margin-right:.6em;font-weight:600}td[data-h]::before{content:"
    "attr("
    "data-h) ': ';color:var(--soft)}small{display:inline;margin:0 0 0 .6em;max-width:none}}\n";

/* What is chosen stands behind the '#' of the address, so that a choice can be passed on. */
static const char script[] =
    "'use strict';\n"
    "const "
    "form=document.forms[0],body=document.querySelector('tbody'),heads=[...document.querySelectorAll('th')],"
    "\n"
    "rows=[...body.rows],fields=['model','card','kind','fits'];let column=-1,down=false;\n"
    "const value=(row,i)=>{const c=row.cells[i];return "
    "c.dataset.v===undefined?c.dataset.k||c.textContent:+c.dataset.v};\n"
    "function options(select,i){for(const t of new "
    "Set(rows.map(r=>r.cells[i].dataset.k||r.cells[i].textContent)))select.add(new "
    "Option(t,t))}\n"
    "function show(){\n"
    "const f=Object.fromEntries(fields.map(n=>[n,form[n].value]));let shown=0;\n"
    "for(const r of rows){const "
    "c=r.cells,hide=!c[0].textContent.toLowerCase().includes(f.model.toLowerCase())||\n"
    "f.card&&c[1].textContent!==f.card||f.kind&&c[2].dataset.k!==f.kind||f.fits&&c[+f.fits].className!=='y'"
    ";\n"
    "r.hidden=hide;shown+=!hide}\n"
    "const sorted=[...rows];\n"
    "if(column>=0)sorted.sort((a,b)=>{const x=value(a,column),y=value(b,column),\n"
    "o=typeof x==='number'?x-y:x.localeCompare(y,'en',{numeric:true});return down?-o:o});\n"
    "body.append(...sorted);\n"
    "heads.forEach((h,i)=>i===column?h.setAttribute('aria-sort',down?'descending':'ascending'):h."
    "removeAttribute("
    "'aria-sort'));\n"
    "form.count.value=shown+' of '+rows.length}\n"
    "function read(){const p=new URLSearchParams(location.hash.slice(1));\n"
    "for(const n of fields)form[n].value=p.get(n)||'';\n"
    "column=p.has('sort')?+p.get('sort'):-1;down=p.has('down');show()}\n"
    "function write(){const p=new URLSearchParams();for(const n of "
    "fields)if(form[n].value)p.set(n,form[n].value);\n"
    "if(column>=0)p.set('sort',column);if(down)p.set('down',1);\n"
    "history.replaceState(null,'','#'+p);show()}\n"
    "options(form.card,1);options(form.kind,2);\n"
    "heads.forEach((h,i)=>{if(h.className==='l')form.fits.add(new Option(h.textContent,i))});\n"
    "form.fits.remove(form.fits.length-1);\n"
    "heads.forEach((h,i)=>{const "
    "b=document.createElement('button');b.type='button';b.textContent=h.textContent;\n"
    "b.onclick=()=>{down=column===i&&!down;column=i;write()};h.replaceChildren(b)});\n"
    "form.oninput=write;form.onsubmit=()=>false;addEventListener('hashchange',read);\n"
    "form.hidden=false;read();\n";

/* As a policy names a script: its SHA-256 in base64. */
static void add_hash(sbp_text *out, const char *text) {
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    char hex[65];
    unsigned char bytes[33] = {0};
    sbp_sha256 hash = sbp_sha256_begin();
    sbp_sha256_add(&hash, text, strlen(text));
    sbp_sha256_end(&hash, hex);
    for (int i = 0; i < 32; i++) {
        unsigned byte;
        if (sscanf(hex + 2 * i, "%2x", &byte) == 1)
            bytes[i] = (unsigned char)byte;
    }
    for (int i = 0; i < 33; i += 3) {
        unsigned three = (unsigned)bytes[i] << 16 | (unsigned)bytes[i + 1] << 8 | bytes[i + 2];
        sbp_text_add(out, "%c%c%c%c", letters[three >> 18], letters[three >> 12 & 63],
                     letters[three >> 6 & 63], i + 3 < 33 ? letters[three & 63] : '=');
    }
}

static void add_number(sbp_text *out, int64_t bytes) {
    char text[32];
    sbp_text_add(out, "%s", sbp_format_bytes(text, sizeof text, (double)bytes));
}

/* How long it takes, and what it holds; why not, and what would. Sorted, what does not fit comes last. */
static void add_cell(const sbp_fit *f, const sbp_fit_cell *cell, sbp_text *out) {
    char text[32];
    const char *head = sbp_fit_length(f->arena, f->lengths[cell->length]);
    if (cell->fits) {
        sbp_text_add(out, "<td class=\"y\" data-h=\"%s\" data-v=\"%.4g\" title=\"", head, cell->seconds);
        add_number(out, cell->device_bytes);
        if (cell->host_bytes > 0) {
            sbp_text_add(out, ", on the host ");
            add_number(out, cell->host_bytes);
        }
        sbp_text_add(out, "\">%s</td>", sbp_format_seconds(text, sizeof text, cell->seconds));
        return;
    }
    sbp_text_add(out, "<td class=\"n\" data-h=\"%s\" data-v=\"1e30\" title=\"", head);
    sbp_text_add_escaped(out, cell->reason ? cell->reason : "");
    sbp_text_add(out, "\">no<small>");
    sbp_text_add_escaped(out, sbp_fit_change(f, cell));
    sbp_text_add(out, "</small></td>");
}

static void add_row(const sbp_fit *f, int32_t m, int32_t c, int32_t k, sbp_text *out) {
    const sbp_fit_cell *longest = sbp_fit_at(f, m, c, k, f->length_count);
    sbp_text_add(out, "<tr><td title=\"");
    sbp_text_add_escaped(out, f->models[m].type);
    sbp_text_add(out, ", %s parameters\">", sbp_fit_parameters(f->arena, f->models[m].parameters));
    sbp_text_add_escaped(out, f->models[m].name);
    sbp_text_add(out, "</td><td>");
    sbp_text_add_escaped(out, f->card_names[c]);
    const char *part = sbp_fit_part(f, m, c, k);
    sbp_text_add(out, "</td><td data-k=\"%s\">%s", sbp_fit_kind_names[f->kinds[k]],
                 sbp_fit_kind_names[f->kinds[k]]);
    if (part)
        sbp_text_add(out, "<small>%s</small>", part);
    sbp_text_add(out, "</td><td class=\"l c\" data-h=\"context\" data-v=\"%lld\">%s</td>",
                 (long long)f->models[m].positions,
                 f->models[m].positions > 0 ? sbp_fit_count(f->arena, f->models[m].positions) : "-");
    for (int32_t n = 0; n < f->length_count; n++)
        add_cell(f, sbp_fit_at(f, m, c, k, n), out);
    sbp_text_add(out, "<td class=\"l\" data-h=\"longest\" data-v=\"%lld\">%s</td></tr>\n",
                 (long long)(longest->fits ? longest->tokens : 0),
                 longest->fits ? sbp_fit_count(f->arena, longest->tokens) : "-");
}

void sbp_fit_print_page(const sbp_fit *f, sbp_text *out) {
    sbp_text about;
    sbp_text_init(&about, f->arena);
    sbp_fit_describe(f, &about);
    sbp_text_add(out, "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
                      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src "
                      "'unsafe-inline'; script-src 'sha256-");
    add_hash(out, script);
    sbp_text_add(out, "'\">\n<meta name=\"viewport\" content=\"width=device-width\">\n<title>Will it "
                      "fit?</title>\n<style>\n");
    sbp_text_add_n(out, style, sizeof style - 1);
    sbp_text_add(out, "</style>\n</head>\n<body>\n<h1>Will it fit?</h1>\n<p>");
    sbp_text_add_escaped(out, about.data);
    sbp_text_add(
        out, "</p>\n<form hidden>\n<label>Model <input name=\"model\" type=\"search\"></label>\n<label>Card "
             "<select name=\"card\"><option value=\"\">all</select></label>\n<label>Kind <select "
             "name=\"kind\"><option value=\"\">all</select></label>\n<label>Fits <select "
             "name=\"fits\"><option value=\"\">any length, or none</select></label>\n<output "
             "name=\"count\"></output>\n"
             "</form>\n<table>\n<thead><tr><th>Model</th><th>Card</th><th>Kind</th><th "
             "class=\"c\">Context</th>");
    for (int32_t n = 0; n < f->length_count; n++)
        sbp_text_add(out, "<th class=\"l\">%s</th>", sbp_fit_length(f->arena, f->lengths[n]));
    sbp_text_add(out, "<th class=\"l\">Longest</th></tr></thead>\n<tbody>\n");
    for (int32_t m = 0; m < f->model_count; m++)
        for (int32_t c = 0; c < f->card_count && !f->models[m].error; c++)
            for (int32_t k = 0; k < f->kind_count; k++)
                add_row(f, m, c, k, out);
    sbp_text_add(out, "</tbody>\n</table>\n<script>");
    sbp_text_add_n(out, script, sizeof script - 1);
    sbp_text_add(out, "</script>\n</body>\n</html>\n");
}
