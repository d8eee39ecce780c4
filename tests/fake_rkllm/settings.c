/* The functions that change a handle's state between runs: cache, template, tools, adapters. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "checks.h"
#include "keep.h"

void replace(char **texts, const char *first, const char *second, const char *third)
{
    const char *const new[] = {first, second, third};
    for (int i = 0; i < 3; i++) {
        free(texts[i]);
        texts[i] = copy_of(new[i]);
    }
}

int rkllm_clear_kv_cache(LLMHandle handle, int keep_system_prompt, int *start_pos, int *end_pos)
{
    Instance *instance = instance_of(handle, "rkllm_clear_kv_cache");
    log_call("rkllm_clear_kv_cache keep_system_prompt=%d ranges=%d", keep_system_prompt,
             start_pos != NULL);
    if ((start_pos == NULL) != (end_pos == NULL))
        refuse("rkllm_clear_kv_cache: start_pos and end_pos go together");
    /* A range can be cleared only while a run is paused by its callback. */
    if (instance->running || (start_pos != NULL && instance->paused == NULL))
        return -1;
    if (instance->script->clear == CLEAR_FAILS)
        return -1;
    if (start_pos != NULL || instance->script->clear == CLEAR_LIES)
        return 0;
    instance->cache_size = ANY;
    forget_history(instance);
    instance->last_prompt.length = 0;
    return 0;
}

int rkllm_get_kv_cache_size(LLMHandle handle, int *cache_sizes)
{
    Instance *instance = instance_of(handle, "rkllm_get_kv_cache_size");
    log_call("rkllm_get_kv_cache_size");
    check_pointer("cache_sizes", cache_sizes);
    if (instance->script->size_fails)
        return -1;
    for (size_t i = 0; i < instance->param.extend_param.n_batch; i++)
        cache_sizes[i] = i == 0 ? (int)instance->kv.length : 0;
    if (instance->cache_size != ANY)
        cache_sizes[0] = (int)instance->cache_size;
    return 0;
}

int rkllm_set_chat_template(LLMHandle handle, const char *system_prompt, const char *prompt_prefix,
                            const char *prompt_postfix)
{
    Instance *instance = instance_of(handle, "rkllm_set_chat_template");
    log_call("rkllm_set_chat_template");
    check_pointer("system_prompt", system_prompt);
    check_pointer("prompt_prefix", prompt_prefix);
    check_pointer("prompt_postfix", prompt_postfix);
    replace(instance->chat_template, system_prompt, prompt_prefix, prompt_postfix);
    return 0;
}

int rkllm_set_function_tools(LLMHandle handle, const char *system_prompt, const char *tools,
                             const char *tool_response_str)
{
    Instance *instance = instance_of(handle, "rkllm_set_function_tools");
    log_call("rkllm_set_function_tools");
    check_pointer("system_prompt", system_prompt);
    check_pointer("tools", tools);
    check_pointer("tool_response_str", tool_response_str);
    replace(instance->tools, system_prompt, tools, tool_response_str);
    return 0;
}

int rkllm_set_cross_attn_params(LLMHandle handle, RKLLMCrossAttnParam *cross_attn_params)
{
    Instance *instance = instance_of(handle, "rkllm_set_cross_attn_params");
    log_call("rkllm_set_cross_attn_params set=%d", cross_attn_params != NULL);
    if (cross_attn_params != NULL)
        check_cross_attention(cross_attn_params);
    instance->has_cross_attention = cross_attn_params != NULL;
    return 0;
}

int rkllm_load_lora(LLMHandle handle, RKLLMLoraAdapter *lora_adapter)
{
    Instance *instance = instance_of(handle, "rkllm_load_lora");
    check_lora(lora_adapter);
    log_call("rkllm_load_lora name=%s scale=%g", lora_adapter->lora_adapter_name,
             (double)lora_adapter->scale);
    if (access(lora_adapter->lora_adapter_path, R_OK) != 0 || instance->n_loras == MOST_LORAS)
        return -1;
    instance->loras[instance->n_loras++] = copy_of(lora_adapter->lora_adapter_name);
    return 0;
}

/* Returns false if the file is no prompt cache. Ends the process if it is another model's, because
 * the behaviour of the real library is then unknown. */
static bool read_prompt_cache(Instance *instance, const char *path)
{
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return false;
    char *line = NULL;
    size_t room = 0;
    bool is_cache = getline(&line, &room, file) > 0 && strcmp(line, "fake-rkllm-cache\n") == 0;
    if (is_cache && getline(&line, &room, file) > 0) {
        line[strcspn(line, "\n")] = '\0';
        if (strcmp(line, instance->model) != 0)
            refuse("rkllm_load_prompt_cache: %s is of another model", path);
    }
    if (is_cache && getline(&line, &room, file) > 0) {
        line[strcspn(line, "\n")] = '\0';
        free(instance->prompt_cache_lora);
        instance->prompt_cache_lora = line[0] == '\0' ? NULL : copy_of(line);
    }
    tokens_free(&instance->prompt_cache);
    for (int id; is_cache && fscanf(file, "%d,", &id) == 1;)
        tokens_add(&instance->prompt_cache, id);
    free(line);
    fclose(file);
    return is_cache;
}

int rkllm_load_prompt_cache(LLMHandle handle, const char *prompt_cache_path)
{
    Instance *instance = instance_of(handle, "rkllm_load_prompt_cache");
    check_pointer("prompt_cache_path", prompt_cache_path);
    log_call("rkllm_load_prompt_cache path=%s", prompt_cache_path);
    if (instance->has_aborted_save && instance->script->aborted_save_spoils)
        crash("corrupted prompt cache state");
    /* Another cache may be loaded only after the previous one was released. */
    if (instance->has_prompt_cache || !read_prompt_cache(instance, prompt_cache_path))
        return -1;
    instance->has_prompt_cache = true;
    return 0;
}

int rkllm_release_prompt_cache(LLMHandle handle)
{
    Instance *instance = instance_of(handle, "rkllm_release_prompt_cache");
    log_call("rkllm_release_prompt_cache");
    if (!instance->has_prompt_cache)
        return -1;
    instance->has_prompt_cache = false;
    return 0;
}
