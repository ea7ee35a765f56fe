// judge.cpp: what llama.cpp makes of a GGUF file. Built against its own libraries by tests/gguf/llama.sh.
//
//     judge MODEL.gguf [ADAPTER.gguf] < requests > answers
//
// Requests are lines, so are their answers, in order:
//     row ID ID ..      log-probabilities of the tokens behind the first, "%.9g" each; keys and values in F32
//     all ID ID ..      log-probabilities of all tokens behind each, "%.6g" each
//     text HEX          ids of a text (bytes as hexadecimal digits), with what the file puts around it
//     special           bos eos add_bos add_eos, ids or -1
//     chat HEX HEX ..   the text, as hexadecimal digits, that its template makes of messages: user, assistant, user ..
//
// Any error ends it with a message and exit status 1.
#include <cmath>
#include <cstdio>
#include <iostream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "chat.h"
#include "llama.h"

using tokens = std::vector<llama_token>;

static std::string from_hex(const std::string &hex) {
    std::string out;
    for (size_t i = 0; i + 1 < hex.size(); i += 2)
        out += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
    return out;
}

static void print_hex(const std::string &text) {
    for (unsigned char c : text)
        printf("%02x", c);
    printf("\n");
}

// A context of its own for each row: nothing is left of the one before.
class row_run {
  public:
    row_run(llama_model *model, llama_adapter_lora *adapter, const tokens &ids) {
        llama_context_params p = llama_context_default_params();
        p.n_ctx = p.n_batch = p.n_ubatch = static_cast<uint32_t>(ids.size());
        p.n_seq_max = 1;
        p.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
        p.type_k = p.type_v = GGML_TYPE_F32;
        p.n_threads = p.n_threads_batch = 1;
        context = llama_init_from_model(model, p);
        if (!context)
            throw std::runtime_error("no context");
        llama_memory_clear(llama_get_memory(context), true); // states, too
        float scale = 1;
        if (adapter && llama_set_adapters_lora(context, &adapter, 1, &scale) != 0)
            throw std::runtime_error("the adapter does not fit");
        llama_batch batch = llama_batch_init(static_cast<int32_t>(ids.size()), 0, 1);
        for (size_t i = 0; i < ids.size(); i++) {
            batch.token[i] = ids[i];
            batch.pos[i] = static_cast<llama_pos>(i);
            batch.n_seq_id[i] = 1;
            batch.seq_id[i][0] = 0;
            batch.logits[i] = 1;
        }
        batch.n_tokens = static_cast<int32_t>(ids.size());
        int status = llama_decode(context, batch);
        llama_batch_free(batch);
        if (status != 0)
            throw std::runtime_error("llama_decode failed");
        vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));
    }
    ~row_run() { llama_free(context); }
    row_run(const row_run &) = delete;

    std::vector<double> log_probs(size_t at) const {
        const float *logits = llama_get_logits_ith(context, static_cast<int32_t>(at));
        std::vector<double> out(logits, logits + vocab);
        double most = -INFINITY, sum = 0;
        for (double x : out)
            most = std::fmax(most, x);
        for (double x : out)
            sum += std::exp(x - most);
        for (double &x : out)
            x -= most + std::log(sum);
        return out;
    }

    int vocab = 0;

  private:
    llama_context *context = nullptr;
};

static tokens read_ids(std::istringstream &in) {
    tokens ids;
    for (llama_token id; in >> id;)
        ids.push_back(id);
    return ids;
}

static void answer_chat(llama_model *model, std::istringstream &in) {
    common_chat_templates_ptr templates = common_chat_templates_init(model, "");
    common_chat_templates_inputs inputs;
    std::string hex;
    for (int i = 0; in >> hex; i++) {
        common_chat_msg message;
        message.role = i % 2 == 0 ? "user" : "assistant";
        message.content = from_hex(hex);
        inputs.messages.push_back(message);
    }
    inputs.use_jinja = true;
    inputs.add_generation_prompt = inputs.messages.size() % 2 == 1;
    print_hex(common_chat_templates_apply(templates.get(), inputs).prompt);
}

static void answer(llama_model *model, llama_adapter_lora *adapter, const std::string &line) {
    const llama_vocab *vocab = llama_model_get_vocab(model);
    std::istringstream in(line);
    std::string what, hex;
    in >> what;
    if (what == "row" || what == "all") {
        tokens ids = read_ids(in);
        row_run run(model, adapter, ids);
        for (size_t i = 0; what == "row" && i + 1 < ids.size(); i++)
            printf("%.9g ", run.log_probs(i)[static_cast<size_t>(ids[i + 1])]);
        for (size_t i = 0; what == "all" && i < ids.size(); i++)
            for (double x : run.log_probs(i))
                printf("%.6g ", x);
        printf("\n");
    } else if (what == "text") {
        in >> hex;
        std::string text = from_hex(hex);
        tokens ids(text.size() + 8);
        int n = llama_tokenize(vocab, text.data(), static_cast<int32_t>(text.size()), ids.data(),
                               static_cast<int32_t>(ids.size()), true, true);
        if (n < 0)
            throw std::runtime_error("llama_tokenize failed");
        for (int i = 0; i < n; i++)
            printf("%d ", ids[static_cast<size_t>(i)]);
        printf("\n");
    } else if (what == "special") {
        printf("%d %d %d %d\n", llama_vocab_bos(vocab), llama_vocab_eos(vocab), llama_vocab_get_add_bos(vocab),
               llama_vocab_get_add_eos(vocab));
    } else if (what == "chat") {
        answer_chat(model, in);
    } else {
        throw std::runtime_error("unknown request: " + what);
    }
}

int main(int argc, char **argv) {
    llama_log_set(
        [](ggml_log_level level, const char *text, void *) {
            if (level >= GGML_LOG_LEVEL_ERROR && level != GGML_LOG_LEVEL_CONT)
                fputs(text, stderr);
        },
        nullptr);
    llama_backend_init();
    try {
        llama_model_params p = llama_model_default_params();
        p.use_extra_bufts = false;
        llama_model *model = argc > 1 ? llama_model_load_from_file(argv[1], p) : nullptr;
        if (!model)
            throw std::runtime_error("the model was not loaded");
        llama_adapter_lora *adapter = argc > 2 ? llama_adapter_lora_init(model, argv[2]) : nullptr;
        if (argc > 2 && !adapter)
            throw std::runtime_error("the adapter was not loaded");
        for (std::string line; std::getline(std::cin, line);)
            answer(model, adapter, line);
        llama_model_free(model);
    } catch (const std::exception &error) {
        fprintf(stderr, "judge: %s\n", error.what());
        return 1;
    }
    return 0;
}
