#include "checks.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static const long MOST_TOKENS = 1 << 20;

static bool mapped(const void *pointer)
{
    uintptr_t page = (uintptr_t)pointer & ~((uintptr_t)sysconf(_SC_PAGESIZE) - 1);
    unsigned char resident;
    return mincore((void *)page, 1, &resident) == 0;
}

static bool executable(const void *pointer)
{
    FILE *maps = fopen("/proc/self/maps", "re");
    if (maps == NULL)
        return true;
    char line[512];
    bool found = false;
    while (!found && fgets(line, sizeof line, maps) != NULL) {
        uintptr_t begin, end;
        char rights[5];
        if (sscanf(line, "%lx-%lx %4s", &begin, &end, rights) == 3)
            found = begin <= (uintptr_t)pointer && (uintptr_t)pointer < end && rights[2] == 'x';
    }
    fclose(maps);
    return found;
}

void check_pointer(const char *what, const void *pointer)
{
    if (pointer == NULL)
        refuse("%s is NULL", what);
    if (!mapped(pointer))
        refuse("%s is %p, where there is no memory", what, pointer);
}

static void optional(const char *what, const void *pointer)
{
    if (pointer != NULL)
        check_pointer(what, pointer);
}

static void function(const char *what, const void *pointer)
{
    check_pointer(what, pointer);
    if (!executable(pointer))
        refuse("%s is %p, which is no function", what, pointer);
}

static void whole(const char *what, long value, long least, long most)
{
    if (value < least || value > most)
        refuse("%s is %ld, not from %ld to %ld", what, value, least, most);
}

static void real(const char *what, double value, double least, double most)
{
    if (!(value >= least && value <= most))
        refuse("%s is %g, not from %g to %g", what, value, least, most);
}

/* Reading a byte other than 0 or 1 as a bool is undefined behaviour, so the byte is copied. */
static void flag(const char *what, const bool *value)
{
    unsigned char byte;
    memcpy(&byte, value, 1);
    whole(what, byte, 0, 1);
}

#define CHECK_SAMPLING(of, values)                                                                 \
    do {                                                                                           \
        whole(of ".top_k", (values)->top_k, 0, MOST_TOKENS);                                       \
        real(of ".top_p", (values)->top_p, 0, 1);                                                  \
        real(of ".temperature", (values)->temperature, 0, 100);                                    \
        real(of ".repeat_penalty", (values)->repeat_penalty, 0, 100);                              \
        real(of ".frequency_penalty", (values)->frequency_penalty, -100, 100);                     \
        real(of ".presence_penalty", (values)->presence_penalty, -100, 100);                       \
        whole(of ".mirostat", (values)->mirostat, 0, 2);                                           \
        real(of ".mirostat_tau", (values)->mirostat_tau, 0, 100);                                  \
        real(of ".mirostat_eta", (values)->mirostat_eta, 0, 100);                                  \
    } while (0)

static void check_extend(const RKLLMExtendParam *extend)
{
    whole("RKLLMExtendParam.base_domain_id", extend->base_domain_id, 0, 64);
    whole("RKLLMExtendParam.embed_flash", extend->embed_flash, 0, 1);
    whole("RKLLMExtendParam.enabled_cpus_num", extend->enabled_cpus_num, 1, 8);
    whole("RKLLMExtendParam.enabled_cpus_mask", extend->enabled_cpus_mask, 1, 0xff);
    /* The limit in the real library's error message; its manual recommends up to 8. */
    whole("RKLLMExtendParam.n_batch", extend->n_batch, 1, 100);
    whole("RKLLMExtendParam.use_cross_attn", extend->use_cross_attn, 0, 1);
    for (size_t i = 0; i < sizeof extend->reserved; i++)
        whole("RKLLMExtendParam.reserved", extend->reserved[i], 0, 0);
}

void check_param(const RKLLMParam *param)
{
    check_pointer("RKLLMParam", param);
    check_pointer("RKLLMParam.model_path", param->model_path);
    whole("RKLLMParam.max_context_len", param->max_context_len, 1, MOST_TOKENS);
    whole("RKLLMParam.max_new_tokens", param->max_new_tokens, -1, MOST_TOKENS);
    whole("RKLLMParam.n_keep", param->n_keep, -1, MOST_TOKENS);
    CHECK_SAMPLING("RKLLMParam", param);
    flag("RKLLMParam.skip_special_token", &param->skip_special_token);
    flag("RKLLMParam.is_async", &param->is_async);
#if ABI == 12
    optional("RKLLMParam.img_start", param->img_start);
    optional("RKLLMParam.img_end", param->img_end);
    optional("RKLLMParam.img_content", param->img_content);
#else
    flag("RKLLMParam.ignore_eos_token", &param->ignore_eos_token);
#endif
    check_extend(&param->extend_param);
}

LLMResultCallback check_callback(InitCallback callback)
{
#if ABI == 12
    function("the callback", callback);
    return callback;
#else
    check_pointer("RKLLMCallback", callback);
    function("RKLLMCallback.result_callback", callback->result_callback);
    if (callback->tokenizer_callback != NULL)
        function("RKLLMCallback.tokenizer_callback", callback->tokenizer_callback);
    if (callback->embed_callback != NULL)
        function("RKLLMCallback.embed_callback", callback->embed_callback);
    return callback->result_callback;
#endif
}

static size_t tags(const char *prompt)
{
    size_t count = 0;
    for (; (prompt = strstr(prompt, "<image>")) != NULL; prompt++)
        count++;
    return count;
}

static void check_images(const char *prompt, const float *embeddings, size_t tokens, size_t images,
                         size_t width, size_t height)
{
    check_pointer("RKLLMMultiModalInput.image_embed", embeddings);
    whole("RKLLMMultiModalInput.n_image_tokens", (long)tokens, 1, MOST_TOKENS);
    whole("RKLLMMultiModalInput.n_image", (long)images, 1, MOST_TOKENS);
    whole("RKLLMMultiModalInput.image_width", (long)width, 1, MOST_TOKENS);
    whole("RKLLMMultiModalInput.image_height", (long)height, 1, MOST_TOKENS);
    if (tags(prompt) != images)
        refuse("RKLLMMultiModalInput.prompt has %zu <image>, not %zu", tags(prompt), images);
    for (size_t i = 0; i < images * tokens * EMBEDDING; i++) {
        check_pointer("RKLLMMultiModalInput.image_embed", &embeddings[i]);
        real("RKLLMMultiModalInput.image_embed", (double)embeddings[i], -1e6, 1e6);
    }
}

static void check_multimodal(const RKLLMMultiModalInput *input)
{
    check_pointer("RKLLMMultiModalInput.prompt", input->prompt);
#if ABI == 12
    check_images(input->prompt, input->image_embed, input->n_image_tokens, input->n_image,
                 input->image_width, input->image_height);
#else
    if (input->image.image_embed == NULL && input->video.video_embed == NULL)
        refuse("RKLLMMultiModalInput has neither image nor video");
    if (input->image.image_embed != NULL) {
        check_images(input->prompt, input->image.image_embed, input->image.n_image_tokens,
                     input->image.n_image, input->image.image_width, input->image.image_height);
        check_pointer("RKLLMMultiModalInput.image.image_start", input->image.image_start);
        check_pointer("RKLLMMultiModalInput.image.image_end", input->image.image_end);
        check_pointer("RKLLMMultiModalInput.image.image_content", input->image.image_content);
    }
    optional("RKLLMMultiModalInput.video.video_embed", input->video.video_embed);
    optional("RKLLMMultiModalInput.video.video_start", input->video.video_start);
#endif
}

void check_input(const RKLLMInput *input)
{
    check_pointer("RKLLMInput", input);
    check_pointer("RKLLMInput.role", input->role);
    flag("RKLLMInput.enable_thinking", &input->enable_thinking);
    whole("RKLLMInput.input_type", (long)input->input_type, 0, RKLLM_INPUT_MULTIMODAL);
    switch (input->input_type) {
    case RKLLM_INPUT_PROMPT:
        check_pointer("RKLLMInput.prompt_input", input->prompt_input);
        break;
    case RKLLM_INPUT_TOKEN:
        check_pointer("RKLLMTokenInput.input_ids", input->token_input.input_ids);
        whole("RKLLMTokenInput.n_tokens", (long)input->token_input.n_tokens, 1, MOST_TOKENS);
        for (size_t i = 0; i < input->token_input.n_tokens; i++)
            whole("RKLLMTokenInput.input_ids", input->token_input.input_ids[i], 0, MOST_TOKENS);
        break;
    case RKLLM_INPUT_EMBED:
        check_pointer("RKLLMEmbedInput.embed", input->embed_input.embed);
        whole("RKLLMEmbedInput.n_tokens", (long)input->embed_input.n_tokens, 1, MOST_TOKENS);
        break;
    case RKLLM_INPUT_MULTIMODAL:
        check_multimodal(&input->multimodal_input);
    }
}

void check_infer(const RKLLMInferParam *infer)
{
    check_pointer("RKLLMInferParam", infer);
    whole("RKLLMInferParam.mode", (long)infer->mode, 0, RKLLM_INFER_GET_LOGITS);
    whole("RKLLMInferParam.keep_history", infer->keep_history, 0, 1);
    optional("RKLLMInferParam.lora_params", infer->lora_params);
    if (infer->lora_params != NULL)
        check_pointer("RKLLMLoraParam.lora_adapter_name", infer->lora_params->lora_adapter_name);
    optional("RKLLMInferParam.prompt_cache_params", infer->prompt_cache_params);
    if (infer->prompt_cache_params != NULL) {
        whole("RKLLMPromptCacheParam.save_prompt_cache",
              infer->prompt_cache_params->save_prompt_cache, 0, 1);
        optional("RKLLMPromptCacheParam.prompt_cache_path",
                 infer->prompt_cache_params->prompt_cache_path);
    }
#if ABI != 12
    whole("RKLLMInferParam.max_new_tokens", infer->max_new_tokens, -1, MOST_TOKENS);
    optional("RKLLMInferParam.sampling_params", infer->sampling_params);
    if (infer->sampling_params != NULL)
        CHECK_SAMPLING("RKLLMSamplingParam", infer->sampling_params);
#endif
}

void check_lora(const RKLLMLoraAdapter *adapter)
{
    check_pointer("RKLLMLoraAdapter", adapter);
    check_pointer("RKLLMLoraAdapter.lora_adapter_path", adapter->lora_adapter_path);
    check_pointer("RKLLMLoraAdapter.lora_adapter_name", adapter->lora_adapter_name);
    real("RKLLMLoraAdapter.scale", adapter->scale, -100, 100);
}

void check_cross_attention(const RKLLMCrossAttnParam *param)
{
    check_pointer("RKLLMCrossAttnParam", param);
    check_pointer("RKLLMCrossAttnParam.encoder_k_cache", param->encoder_k_cache);
    check_pointer("RKLLMCrossAttnParam.encoder_v_cache", param->encoder_v_cache);
    check_pointer("RKLLMCrossAttnParam.encoder_mask", param->encoder_mask);
    check_pointer("RKLLMCrossAttnParam.encoder_pos", param->encoder_pos);
    whole("RKLLMCrossAttnParam.num_tokens", param->num_tokens, 1, MOST_TOKENS);
}
