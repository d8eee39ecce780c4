/* 1.2.0 and 1.1.x, as far as a binding must recognise them: their symbols and default
 * parameters. Any other call means that the binding failed to recognise them. */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PUBLIC __attribute__((visibility("default")))

#if ABI == 120
#define DEFAULT_VERSION "1.2.0"
#elif ABI == 110
#define DEFAULT_VERSION "1.1.4"
#else
#error "-DABI=120 or -DABI=110"
#endif
#ifndef VERSION
#define VERSION DEFAULT_VERSION
#endif

typedef struct {
    int32_t base_domain_id;
#if ABI == 120
    int8_t embed_flash;
    int8_t enabled_cpus_num;
    uint32_t enabled_cpus_mask;
    uint8_t reserved[106];
#else
    uint8_t reserved[112];
#endif
} RKLLMExtendParam;

typedef struct {
    const char *model_path;
    int32_t max_context_len;
    int32_t max_new_tokens;
    int32_t top_k;
#if ABI == 120
    int32_t n_keep;
#endif
    float top_p;
    float temperature;
    float repeat_penalty;
    float frequency_penalty;
    float presence_penalty;
    int32_t mirostat;
    float mirostat_tau;
    float mirostat_eta;
    bool skip_special_token;
    bool is_async;
    const char *img_start;
    const char *img_end;
    const char *img_content;
    RKLLMExtendParam extend_param;
} RKLLMParam;

_Static_assert(sizeof(RKLLMParam) == (ABI == 120 ? 208 : 200), "the size of RKLLMParam");

PUBLIC RKLLMParam rkllm_createDefaultParam(void)
{
    RKLLMParam param;
    memset(&param, 0xa5, sizeof param);
    param.model_path = NULL;
    param.max_context_len = 512;
    param.max_new_tokens = -1;
    param.top_k = ABI == 120 ? 40 : 1;
    param.top_p = 0.9f;
    param.temperature = 0.8f;
    param.repeat_penalty = 1.1f;
    param.frequency_penalty = 0;
    param.presence_penalty = 0;
    param.mirostat = 0;
    param.mirostat_tau = 5.0f;
    param.mirostat_eta = 0.1f;
    param.skip_special_token = true;
    param.is_async = false;
    param.img_start = "<img>";
    param.img_end = "</img>";
    param.img_content = "<unk>";
    memset(&param.extend_param, 0, sizeof param.extend_param);
#if ABI == 120
    param.n_keep = -1;
    param.extend_param.embed_flash = 1;
    param.extend_param.enabled_cpus_num = 4;
    param.extend_param.enabled_cpus_mask = 0xf0;
#endif
    return param;
}

static int refuse(const char *symbol)
{
    static const char version[] =
        "RKLLM SDK (version: " VERSION " | target: Linux | build: f8ca3ae8 2025-04-08)";
    fprintf(stderr, "fake_rkllm: %s of %s was called\n", symbol, version);
    abort();
}

#define REFUSED(symbol)                                                                            \
    int symbol(void);                                                                              \
    PUBLIC int symbol(void)                                                                        \
    {                                                                                              \
        return refuse(#symbol);                                                                    \
    }

REFUSED(rkllm_init)
REFUSED(rkllm_load_lora)
REFUSED(rkllm_load_prompt_cache)
REFUSED(rkllm_release_prompt_cache)
REFUSED(rkllm_destroy)
REFUSED(rkllm_run)
REFUSED(rkllm_run_async)
REFUSED(rkllm_abort)
REFUSED(rkllm_is_running)
#if ABI == 120
REFUSED(rkllm_clear_kv_cache)
REFUSED(rkllm_set_chat_template)
#endif
