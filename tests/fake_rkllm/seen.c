#include "seen.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

/* A rough tokenizer: one token per word. */
static void add_words(Tokens *tokens, const char *text)
{
    while (*(text += strspn(text, " \t\n\v\f\r")) != '\0') {
        size_t length = strcspn(text, " \t\n\v\f\r");
        tokens_add(tokens, token_of_word(text, length));
        text += length;
    }
}

static void add_embeddings(Tokens *tokens, size_t count)
{
    while (count-- > 0)
        tokens_add(tokens, NO_TOKEN);
}

static char *numbers(const RKLLMTokenInput *input)
{
    Buffer text = {0};
    for (size_t i = 0; i < input->n_tokens; i++)
        buffer_format(&text, i == 0 ? "%d" : " %d", input->input_ids[i]);
    return text.bytes;
}

static size_t embedded(const RKLLMMultiModalInput *input)
{
#if ABI == 12
    return input->n_image * input->n_image_tokens;
#else
    return input->image.n_image * input->image.n_image_tokens +
           input->video.n_video * input->video.n_frame_per_video * input->video.n_frame_tokens;
#endif
}

static void copy_images(Seen *seen, const RKLLMMultiModalInput *input, const RKLLMParam *param)
{
#if ABI == 12
    const float *values = input->image_embed;
    seen->images = input->n_image;
    seen->image_tokens = input->n_image_tokens;
    seen->image_width = input->image_width;
    seen->image_height = input->image_height;
    replace(seen->image_marks, param->img_start, param->img_end, param->img_content);
#else
    (void)param;
    const float *values = input->image.image_embed;
    if (values == NULL)
        return;
    seen->images = input->image.n_image;
    seen->image_tokens = input->image.n_image_tokens;
    seen->image_width = input->image.image_width;
    seen->image_height = input->image.image_height;
    replace(seen->image_marks, input->image.image_start, input->image.image_end,
            input->image.image_content);
#endif
    seen->image_sums = take(seen->images * sizeof *seen->image_sums);
    for (size_t i = 0; i < seen->images; i++) {
        seen->image_sums[i] = 0;
        for (size_t j = 0; j < seen->image_tokens * EMBEDDING; j++)
            seen->image_sums[i] += (double)*values++;
    }
}

#define SAMPLING_OF(values)                                                                        \
    ((Sampling){(values)->top_k, (values)->top_p, (values)->temperature, (values)->repeat_penalty, \
                (values)->frequency_penalty, (values)->presence_penalty, (values)->mirostat,       \
                (values)->mirostat_tau, (values)->mirostat_eta})

Seen seen_of(const Instance *instance, const RKLLMInput *input, const RKLLMInferParam *infer)
{
    Seen seen = {
        .role = copy_of(input->role),
        .enable_thinking = input->enable_thinking,
        .type = input->input_type,
        .mode = infer->mode,
        .keep_history = infer->keep_history != 0,
        .sampling = SAMPLING_OF(&instance->param),
        .max_new_tokens = instance->param.max_new_tokens,
    };
    if (infer->lora_params != NULL)
        seen.lora = copy_of(infer->lora_params->lora_adapter_name);
    if (infer->prompt_cache_params != NULL) {
        seen.saves_cache = infer->prompt_cache_params->save_prompt_cache != 0;
        seen.cache_path = copy_of(infer->prompt_cache_params->prompt_cache_path);
    }
#if ABI != 12
    if (infer->sampling_params != NULL)
        seen.sampling = SAMPLING_OF(infer->sampling_params);
    if (infer->max_new_tokens > 0)
        seen.max_new_tokens = infer->max_new_tokens;
#endif
    switch (input->input_type) {
    case RKLLM_INPUT_PROMPT:
        seen.prompt = copy_of(input->prompt_input);
        add_words(&seen.tokens, seen.prompt);
        break;
    case RKLLM_INPUT_TOKEN:
        seen.prompt = numbers(&input->token_input);
        for (size_t i = 0; i < input->token_input.n_tokens; i++)
            tokens_add(&seen.tokens, input->token_input.input_ids[i]);
        break;
    case RKLLM_INPUT_EMBED:
        seen.prompt = copy_of("");
        add_embeddings(&seen.tokens, input->embed_input.n_tokens);
        break;
    case RKLLM_INPUT_MULTIMODAL:
        seen.prompt = copy_of(input->multimodal_input.prompt);
        add_words(&seen.tokens, seen.prompt);
        add_embeddings(&seen.tokens, embedded(&input->multimodal_input));
        copy_images(&seen, &input->multimodal_input, &instance->param);
    }
    return seen;
}

void seen_free(Seen *seen)
{
    free(seen->role);
    free(seen->prompt);
    tokens_free(&seen->tokens);
    free(seen->lora);
    free(seen->cache_path);
    free(seen->image_sums);
    replace(seen->image_marks, NULL, NULL, NULL);
}

long seen_number(const Seen *seen)
{
    const char *end = seen->prompt + strlen(seen->prompt);
    while (end > seen->prompt && !isdigit((unsigned char)end[-1]))
        end--;
    while (end > seen->prompt && isdigit((unsigned char)end[-1]))
        end--;
    return atol(end);
}

static void three(Buffer *json, const char *name, char *const *texts, const char *const *names)
{
    buffer_format(json, ",\"%s\":", name);
    if (texts[0] == NULL) {
        buffer_json(json, NULL);
        return;
    }
    for (int i = 0; i < 3; i++) {
        buffer_format(json, "%s\"%s\":", i == 0 ? "{" : ",", names[i]);
        buffer_json(json, texts[i]);
    }
    buffer_add(json, "}", 1);
}

static void images_json(Buffer *json, const Seen *seen)
{
    static const char *const mark_names[] = {"start", "end", "content"};
    buffer_format(json, ",\"image_tokens\":%zu,\"image_size\":[%zu,%zu],\"images\":[",
                  seen->image_tokens, seen->image_width, seen->image_height);
    for (size_t i = 0; i < seen->images; i++)
        buffer_format(json, i == 0 ? "%.6g" : ",%.6g", seen->image_sums[i]);
    buffer_add(json, "]", 1);
    three(json, "image_marks", seen->image_marks, mark_names);
}

static const char *boolean(bool value)
{
    return value ? "true" : "false";
}

static void sampling_json(Buffer *json, const Sampling *values)
{
    buffer_format(json,
                  ",\"sampling\":{\"top_k\":%d,\"top_p\":%g,\"temperature\":%g,"
                  "\"repeat_penalty\":%g,\"frequency_penalty\":%g,\"presence_penalty\":%g,"
                  "\"mirostat\":%d,\"mirostat_tau\":%g,\"mirostat_eta\":%g}",
                  values->top_k, values->top_p, values->temperature, values->repeat_penalty,
                  values->frequency_penalty, values->presence_penalty, values->mirostat,
                  values->mirostat_tau, values->mirostat_eta);
}

void seen_json(const Seen *seen, const Instance *instance, unsigned long run, Buffer *json)
{
    static const char *const types[] = {"prompt", "token", "embed", "multimodal"};
    static const char *const modes[] = {"generate", "last_hidden_layer", "logits"};
    static const char *const template_names[] = {"system", "prefix", "postfix"};
    static const char *const tool_names[] = {"system", "tools", "tool_response"};
    const RKLLMParam *param = &instance->param;
    buffer_format(json, "{\"run\":%lu,\"input_type\":\"%s\",\"prompt\":", run, types[seen->type]);
    buffer_json(json, seen->prompt);
    buffer_format(json, ",\"prompt_tokens\":%zu,\"role\":", seen->tokens.length);
    buffer_json(json, seen->role);
    buffer_format(json, ",\"enable_thinking\":%s,\"mode\":\"%s\",\"keep_history\":%s,\"history\":",
                  boolean(seen->enable_thinking), modes[seen->mode], boolean(seen->keep_history));
    buffer_json(json, instance->history.bytes == NULL ? "" : instance->history.bytes);
    buffer_format(json, ",\"history_tokens\":%zu,\"max_new_tokens\":%ld", instance->kv.length,
                  seen->max_new_tokens);
    sampling_json(json, &seen->sampling);
    buffer_format(json, ",\"max_context_len\":%d,\"n_keep\":%d,\"skip_special_token\":%s",
                  param->max_context_len, param->n_keep, boolean(param->skip_special_token));
#if ABI != 12
    buffer_format(json, ",\"ignore_eos_token\":%s", boolean(param->ignore_eos_token));
#endif
    buffer_format(json, ",\"base_domain_id\":%d,\"enabled_cpus_mask\":%u",
                  param->extend_param.base_domain_id, param->extend_param.enabled_cpus_mask);
    images_json(json, seen);
    three(json, "chat_template", instance->chat_template, template_names);
    three(json, "function_tools", instance->tools, tool_names);
    buffer_format(json, ",\"lora\":");
    buffer_json(json, seen->lora);
    buffer_format(json, ",\"saves_prompt_cache\":%s,\"prompt_cache\":%s,\"cross_attention\":%s}",
                  boolean(seen->saves_cache), boolean(instance->has_prompt_cache),
                  boolean(instance->has_cross_attention));
}
