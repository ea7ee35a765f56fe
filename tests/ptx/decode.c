/* From opcode, modifiers and operands to what executes them: arithmetic, comparisons, branches, and what all
 * decoders share. */
#include "tests/ptx/decode.h"
#include "tests/ptx/lanes.h"
#include "tests/ptx/machine.h"
#include "tests/ptx/tensor/approx.h"

#include <float.h>
#include <math.h>
#include <string.h>

// ---- helpers ----------------------------------------------------------------------------------------------

static void drop(ptx_mods *mods, int at) {
    memmove(&mods->mods[at], &mods->mods[at + 1], (size_t)(mods->count - at - 1) * sizeof mods->mods[0]);
    mods->count--;
}

bool ptx_take(ptx_mods *mods, const char *name) {
    for (int i = 0; i < mods->count; i++) {
        if (strcmp(mods->mods[i], name) == 0) {
            drop(mods, i);
            return true;
        }
    }
    return false;
}

int ptx_take_one(ptx_mods *mods, const char *const *names) {
    for (int n = 0; names[n]; n++) {
        if (ptx_take(mods, names[n])) {
            return n + 1;
        }
    }
    return 0;
}

void ptx_need_ops(ptx_parser *p, const ptx_insn *i, int least, int most) {
    if (i->ops < least || i->ops > most) {
        ptx_refuse(p, "%s with %d operands", i->name, i->ops);
    }
}

static uint64_t immediate(ptx_parser *p, const ptx_operand *o, ptx_type type) {
    const uint64_t bits = (uint64_t)o->value;
    if (o->kind == PTX_INTEGER && (type == PTX_f32 || type == PTX_f64)) {
        ptx_refuse(p, "an integer as an operand of type .%s", ptx_type_name(type));
    }
    if (o->kind == PTX_FLOAT64 && type == PTX_f32) {
        double wide;
        memcpy(&wide, &bits, sizeof wide);
        const float narrow = (float)wide;
        uint32_t low;
        memcpy(&low, &narrow, sizeof low);
        return low;
    }
    if (o->kind == PTX_FLOAT32 && type == PTX_f64) {
        const uint32_t low = (uint32_t)bits;
        float narrow;
        memcpy(&narrow, &low, sizeof narrow);
        const double wide = narrow;
        uint64_t out;
        memcpy(&out, &wide, sizeof out);
        return out;
    }
    return bits;
}

uint32_t ptx_source(ptx_parser *p, const ptx_operand *o, ptx_type type) {
    int bytes = ptx_type_bytes(type);
    bytes = bytes == 1 ? 2 : bytes;
    if (o->kind == PTX_REGISTER) {
        if (o->bytes != bytes) {
            ptx_refuse(p, "a register of %d bits as an operand of type .%s", 8 * o->bytes,
                       ptx_type_name(type));
        }
        return o->place;
    }
    if (o->kind != PTX_INTEGER && o->kind != PTX_FLOAT32 && o->kind != PTX_FLOAT64) {
        ptx_refuse(p, "expected a register or a number as an operand");
    }
    return ptx_constant(p, immediate(p, o, type), bytes);
}

uint32_t ptx_target(ptx_parser *p, const ptx_operand *o, int bytes) {
    if (o->kind == PTX_SINK) {
        return ptx_hidden_register(p, bytes);
    }
    if (o->kind != PTX_REGISTER || o->special) {
        ptx_refuse(p, "the result needs a register");
    }
    if (o->bytes != bytes) {
        ptx_refuse(p, "a result of %d bits in a register of %d", 8 * bytes, 8 * o->bytes);
    }
    return o->place;
}

uint32_t ptx_predicate(ptx_parser *p, const ptx_operand *o, bool *out_not) {
    if (o->kind != PTX_PREDICATE) {
        ptx_refuse(p, "expected a predicate");
    }
    *out_not = o->negated;
    return o->place;
}

int64_t ptx_integer(ptx_parser *p, const ptx_operand *o) {
    if (o->kind != PTX_INTEGER || o->window) {
        ptx_refuse(p, "expected an integer");
    }
    return o->value;
}

void ptx_use_exec(ptx_insn *i, ptx_exec_fn *exec, ptx_class class, int writes) {
    i->run = PTX_RUN_EXEC;
    i->exec = exec;
    i->class = (uint8_t) class;
    i->writes = (uint8_t)writes;
}

ptx_type ptx_one_type(ptx_parser *p, const ptx_insn *i, const ptx_mods *mods) {
    if (mods->type_count != 1) {
        ptx_refuse(p, "%s with %d types", i->name, mods->type_count);
    }
    return mods->types[0];
}

uint32_t ptx_address_register(ptx_parser *p, const ptx_operand *o) {
    if (o->kind != PTX_ADDRESS) {
        ptx_refuse(p, "expected an address");
    }
    return o->place;
}

bool ptx_take_scope(ptx_insn *i, ptx_mods *mods) {
    static const char *const names[] = {"cta", "gpu", "sys", "cluster", NULL};
    const int scope = ptx_take_one(mods, names);
    i->scope = scope == 1 || scope == 4 ? PTX_SCOPE_CTA : PTX_SCOPE_GPU;
    return scope != 0;
}

void ptx_take_sem(ptx_insn *i, ptx_mods *mods, int otherwise) {
    static const char *const names[] = {"relaxed", "acquire", "release", "acq_rel", "weak", "sc", NULL};
    const int sem = ptx_take_one(mods, names);
    i->sem = (uint8_t)(sem == 0 ? otherwise : sem == 6 ? PTX_ACQ_REL : sem - 1);
}

void ptx_decode(ptx_parser *p, ptx_insn *i, ptx_mods *mods) {
    static const struct {
        const char *name;
        ptx_decode_fn *fn;
    } table[] = {
#define PTX_OP(name, decoder) {name, ptx_decode_##decoder},
#include "tests/ptx/ops.def"
#undef PTX_OP
    };
    for (size_t n = 0; n < sizeof table / sizeof table[0]; n++) {
        if (strcmp(table[n].name, mods->opcode) == 0) {
            table[n].fn(p, i, mods);
            return;
        }
    }
    ptx_refuse(p, "unknown instruction %s", i->name);
}

// ---- arithmetic -------------------------------------------------------------------------------------------

// Logic of predicates.
static void exec_logic(ptx_warp *w, const ptx_insn *i, uint32_t mask) {
    uint32_t v[2] = {0, 0};
    for (int k = 1; k < i->ops; k++) {
        v[k - 1] = *(const uint32_t *)ptx_at(w, i->op[k].place) ^ (i->op[k].negated ? PTX_FULL : 0);
    }
    const uint32_t r = i->form == 'a'   ? v[0] & v[1]
                       : i->form == 'o' ? v[0] | v[1]
                       : i->form == 'x' ? v[0] ^ v[1]
                                        : ~v[0];
    uint32_t *d = ptx_at(w, i->dst);
    *d = (*d & ~mask) | (r & mask);
}

static void decode_logic(ptx_parser *p, ptx_insn *i, const ptx_mods *mods) {
    i->form = (uint8_t)mods->opcode[0];
    if (!strchr("aoxn", i->form)) {
        ptx_refuse(p, "%s of predicates", mods->opcode);
    }
    ptx_need_ops(p, i, i->form == 'n' ? 2 : 3, i->form == 'n' ? 2 : 3);
    bool negated;
    i->dst = ptx_predicate(p, &i->op[0], &negated);
    for (int k = 1; k < i->ops; k++) {
        (void)ptx_predicate(p, &i->op[k], &negated);
    }
    ptx_use_exec(i, exec_logic, PTX_CLASS_INTEGER, 1);
}

static void append(char *key, size_t size, const char *text) {
    const size_t used = strlen(key);
    (void)snprintf(key + used, size - used, ".%s", text);
}

// "mul.wide.s32": what is left of the modifiers, and the types.
static const ptx_lanes_op *find(ptx_parser *p, const ptx_insn *i, ptx_mods *mods, ptx_type type) {
    char key[128];
    const bool fused = strcmp(mods->opcode, "mad") == 0 && ptx_type_kind(type) == 'f';
    (void)snprintf(key, sizeof key, "%s", fused ? "fma" : mods->opcode);
    for (int m = 0; m < mods->count; m++) {
        append(key, sizeof key, mods->mods[m]);
    }
    append(key, sizeof key, ptx_type_name(type));
    if (strcmp(mods->opcode, "dp4a") == 0 && mods->type_count == 2) {
        append(key, sizeof key, ptx_type_name(mods->types[1]));
    }
    const ptx_lanes_op *op = ptx_lanes_find(key);
    if (!op) {
        ptx_refuse(p, "unknown instruction %s", i->name);
    }
    mods->count = 0;
    return op;
}

// The type that stands for an operand of `bytes` bytes.
static ptx_type bits_of(int bytes) {
    return bytes == 8 ? PTX_b64 : bytes == 4 ? PTX_b32 : PTX_b16;
}

static void use_lanes(ptx_parser *p, ptx_insn *i, const ptx_lanes_op *op, ptx_type type) {
    i->run = PTX_RUN_LANES;
    i->lanes = op->fn;
    i->class = op->class;
    i->sources = op->sources;
    i->writes = 1;
    i->dst = ptx_target(p, &i->op[0], op->dst);
    for (int k = 0; k < op->sources; k++) {
        const bool same = op->src[k] == ptx_type_bytes(type);
        i->src[k] = ptx_source(p, &i->op[k + 1], same ? type : bits_of(op->src[k]));
    }
}

void ptx_decode_arith(ptx_parser *p, ptx_insn *i, ptx_mods *mods) {
    if (mods->type_count < 1 || mods->type_count > 2) {
        ptx_refuse(p, "%s without a type", i->name);
    }
    ptx_type type = mods->types[0];
    if (mods->type_count == 2 && strcmp(mods->opcode, "dp4a") != 0) {
        ptx_refuse(p, "unknown instruction %s", i->name);
    }
    for (int m = 0; m < mods->count; m++) {
        if (strcmp(mods->mods[m], "approx") == 0 || strcmp(mods->mods[m], "full") == 0) {
            ptx_decode_approx(p, i, mods);
            return;
        }
        if (strcmp(mods->mods[m], "cc") == 0) {
            ptx_decode_carry(p, i, mods);
            return;
        }
    }
    if (type == PTX_pred) {
        decode_logic(p, i, mods);
        return;
    }
    if (strcmp(mods->opcode, "shr") == 0 && ptx_type_kind(type) == 'b') {
        type = type == PTX_b16 ? PTX_u16 : type == PTX_b32 ? PTX_u32 : PTX_u64;
    }
    if (strcmp(mods->opcode, "abs") == 0 || strcmp(mods->opcode, "neg") == 0 || ptx_type_kind(type) == 'f') {
        i->flush = ptx_take(mods, "ftz");
        i->saturate = type == PTX_f32 && ptx_take(mods, "sat");
        (void)ptx_take(mods, "rn");
    }
    if (i->flush && type != PTX_f32) {
        ptx_refuse(p, "%s: .ftz of this type", i->name);
    }
    const ptx_lanes_op *op = find(p, i, mods, type);
    const bool table = strcmp(mods->opcode, "lop3") == 0;
    ptx_need_ops(p, i, op->sources + 1 + table, op->sources + 1 + table);
    use_lanes(p, i, op, type);
    if (table) {
        i->extra = (uint32_t)ptx_integer(p, &i->op[4]) & 255;
    }
    if (i->saturate && op->class == PTX_CLASS_INTEGER) {
        ptx_refuse(p, "unknown instruction %s", i->name);
    }
}

// ---- approximations ---------------------------------------------------------------------------------------

static void exec_approx(ptx_warp *w, const ptx_insn *i, uint32_t mask) {
    const uint64_t seed = w->launch->options.seed;
    if (i->elem_bytes == 4) {
        uint32_t *d = ptx_at(w, i->dst);
        const uint32_t *x = ptx_at(w, i->src[0]), *y = i->sources > 1 ? ptx_at(w, i->src[1]) : x;
        PTX_EACH_LANE(l, mask) {
            d[l] = sbp_ptx_approx(i->form, SBP_PTX_F32, x[l], i->sources > 1 ? y[l] : 0, i->flag, seed);
        }
    } else {
        uint16_t *d = ptx_at(w, i->dst);
        const uint16_t *x = ptx_at(w, i->src[0]);
        PTX_EACH_LANE(l, mask) {
            for (uint32_t e = 0; e < i->vector; e++) {
                const uint32_t at = l * i->vector + e;
                d[at] = (uint16_t)sbp_ptx_approx(i->form, (sbp_ptx_type)i->type, x[at], 0, i->flag, seed);
            }
        }
    }
}

/* rcp and rsqrt.approx.ftz.f64, "gross approximations": of the upper 32 bits of the operand alone, to the
 * upper 32 bits of the result; the last of those is drawn. */
static void exec_approx_f64(ptx_warp *w, const ptx_insn *i, uint32_t mask) {
    uint64_t *d = ptx_at(w, i->dst);
    const uint64_t *x = ptx_at(w, i->src[0]);
    PTX_EACH_LANE(l, mask) {
        const uint64_t upper = x[l] & ~UINT64_C(0xffffffff);
        double a, r;
        memcpy(&a, &upper, sizeof a);
        a = fabs(a) < DBL_MIN ? copysign(0.0, a) : a;
        r = i->form == SBP_PTX_RCP ? 1.0 / a : 1.0 / sqrt(a);
        r = fabs(r) < DBL_MIN ? copysign(0.0, r) : r;
        memcpy(&d[l], &r, sizeof r);
        d[l] &= ~UINT64_C(0xffffffff);
        if (isfinite(r) && r != 0) {
            d[l] ^= (sbp_ptx_hash(w->launch->options.seed, i->form, upper, 64) & 1) << 32;
        }
    }
}

void ptx_decode_approx(ptx_parser *p, ptx_insn *i, ptx_mods *mods) {
    static const struct {
        const char *name;
        int op, sources;
    } table[] = {{"rcp", SBP_PTX_RCP, 1}, {"sqrt", SBP_PTX_SQRT, 1}, {"rsqrt", SBP_PTX_RSQRT, 1},
                 {"sin", SBP_PTX_SIN, 1}, {"cos", SBP_PTX_COS, 1},   {"lg2", SBP_PTX_LG2, 1},
                 {"ex2", SBP_PTX_EX2, 1}, {"tanh", SBP_PTX_TANH, 1}, {"div", SBP_PTX_DIV, 2}};
    const ptx_type type = ptx_one_type(p, i, mods);
    const bool full = ptx_take(mods, "full"), approx = ptx_take(mods, "approx");
    size_t n = 0;
    while (n < sizeof table / sizeof table[0] && strcmp(table[n].name, mods->opcode) != 0) {
        n++;
    }
    if (type == PTX_f64 && n < 3 && table[n].op != SBP_PTX_SQRT && approx && ptx_take(mods, "ftz")) {
        i->form = (uint8_t)table[n].op;
        ptx_need_ops(p, i, 2, 2);
        i->dst = ptx_target(p, &i->op[0], 8);
        i->src[0] = ptx_source(p, &i->op[1], type);
        ptx_use_exec(i, exec_approx_f64, PTX_CLASS_SPECIAL, 1);
        return;
    }
    const bool halves = type == PTX_f16 || type == PTX_bf16 || type == PTX_f16x2 || type == PTX_bf16x2;
    const bool exists =
        n < sizeof table / sizeof table[0] && full + approx == 1 &&
        (type == PTX_f32 || (halves && (table[n].op == SBP_PTX_EX2 || table[n].op == SBP_PTX_TANH)));
    if (!exists || (full && table[n].op != SBP_PTX_DIV)) {
        ptx_refuse(p, "unknown instruction %s", i->name);
    }
    i->flag = ptx_take(mods, "ftz");
    i->form = (uint8_t)(full ? SBP_PTX_DIV_FULL : table[n].op);
    i->sources = (uint8_t)table[n].sources;
    i->elem_bytes = halves ? 2 : 4;
    i->vector = type == PTX_f16x2 || type == PTX_bf16x2 ? 2 : 1;
    i->type = type == PTX_f16 || type == PTX_f16x2 ? SBP_PTX_F16 : SBP_PTX_BF16;
    ptx_need_ops(p, i, 1 + i->sources, 1 + i->sources);
    i->dst = ptx_target(p, &i->op[0], ptx_type_bytes(type));
    for (int k = 0; k < i->sources; k++) {
        i->src[k] = ptx_source(p, &i->op[1 + k], type);
    }
    ptx_use_exec(i, exec_approx, PTX_CLASS_SPECIAL, 1);
}

// ---- comparisons and choices ------------------------------------------------------------------------------

const char *ptx_take_comparison(ptx_mods *mods) {
    static const char *const names[] = {"eq",  "ne",  "lt",  "le",  "gt",  "ge",  "lo",  "ls",  "hi", "hs",
                                        "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan", NULL};
    static const char *const usual[] = {"eq", "ne",  "lt",  "le",  "gt",  "ge",  "lt",  "le",  "gt",
                                        "ge", "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan"};
    const int n = ptx_take_one(mods, names);
    return n ? usual[n - 1] : NULL;
}

ptx_compare_fn *ptx_comparison(ptx_parser *p, const ptx_insn *i, const char *name, ptx_type type) {
    char key[32];
    (void)snprintf(key, sizeof key, "%s.%s", name ? name : "?", ptx_type_name(type));
    const ptx_compare_op *op = ptx_compare_find(key);
    if (!op) {
        ptx_refuse(p, "unknown instruction %s", i->name);
    }
    return op->fn;
}

void ptx_decode_setp(ptx_parser *p, ptx_insn *i, ptx_mods *mods) {
    const ptx_type type = ptx_one_type(p, i, mods);
    static const char *const combine[] = {"and", "or", "xor", NULL};
    bool negated;
    i->flush = ptx_take(mods, "ftz") && type == PTX_f32;
    i->compare = ptx_comparison(p, i, ptx_take_comparison(mods), type);
    i->combine_op = (uint8_t)ptx_take_one(mods, combine);
    ptx_need_ops(p, i, i->combine_op ? 4 : 3, i->combine_op ? 4 : 3);
    i->run = PTX_RUN_COMPARE;
    i->class = PTX_CLASS_INTEGER;
    i->writes = 1;
    const ptx_operand *d = i->op[0].kind == PTX_PAIR ? &i->op[0].parts[0] : &i->op[0];
    i->dst = d->kind == PTX_SINK ? ptx_hidden_register(p, 0) : ptx_predicate(p, d, &negated);
    if (i->op[0].kind == PTX_PAIR && i->op[0].parts[1].kind != PTX_SINK) {
        i->dst2 = ptx_predicate(p, &i->op[0].parts[1], &negated);
    }
    i->src[0] = ptx_source(p, &i->op[1], type);
    i->src[1] = ptx_source(p, &i->op[2], type);
    if (i->combine_op) {
        i->combine = ptx_predicate(p, &i->op[3], &negated);
        i->combine_not = negated;
    }
}

static void use_width(ptx_parser *p, ptx_insn *i, const char *name, ptx_type type, const char *last) {
    char key[32];
    (void)snprintf(key, sizeof key, "%s.%d%s", name, ptx_type_bytes(type), last);
    const ptx_lanes_op *op = ptx_lanes_find(key);
    if (!op) {
        ptx_refuse(p, "unknown instruction %s", i->name);
    }
    use_lanes(p, i, op, type);
}

void ptx_decode_selp(ptx_parser *p, ptx_insn *i, ptx_mods *mods) {
    ptx_need_ops(p, i, 4, 4);
    use_width(p, i, "selp", ptx_one_type(p, i, mods), "");
    i->select = ptx_predicate(p, &i->op[3], &i->select_not);
}

void ptx_decode_slct(ptx_parser *p, ptx_insn *i, ptx_mods *mods) {
    ptx_need_ops(p, i, 4, 4);
    if (mods->type_count != 2 || (mods->types[1] != PTX_s32 && mods->types[1] != PTX_f32)) {
        ptx_refuse(p, "unknown instruction %s", i->name);
    }
    use_width(p, i, "slct", mods->types[0], mods->types[1] == PTX_s32 ? ".s32" : ".f32");
    i->src[2] = ptx_source(p, &i->op[3], mods->types[1]);
}

void ptx_decode_bra(ptx_parser *p, ptx_insn *i, ptx_mods *mods) {
    (void)ptx_take(mods, "uni");
    ptx_need_ops(p, i, 1, 1);
    if (i->op[0].kind != PTX_NAME) {
        ptx_refuse(p, "expected a label");
    }
    i->run = PTX_RUN_BRANCH;
    i->class = PTX_CLASS_BRANCH;
}
