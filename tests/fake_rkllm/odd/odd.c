/* Libraries with the symbols of librkllmrt.so and invalid behaviour: default parameters of no known
 * layout or of two, and faults when they are requested.
 *
 * -DAT_12, -DAT_13, -DAT=68    the offsets of the extended parameters; they may be combined
 * -DNO_MASK                   the CPU mask is empty
 * -DVERSION="1.2.1"           the version string in the library
 * -DPRINTS, -DDIES, -DHANGS, -DLEAVES    the fault when the default parameters are requested
 * -DDIES_AT_END, -DPRINTS_AT_END    the fault when the process ends
 */
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PUBLIC __attribute__((visibility("default")))

#ifdef VERSION
PUBLIC const char odd_version[] =
    "RKLLM SDK (version: " VERSION " | target: Linux | build: f8ca3ae8 2025-04-08)";
#endif

typedef struct {
    unsigned char bytes[256];
} Param;

static void put(Param *param, size_t at, const void *value, size_t size)
{
    memcpy(param->bytes + at, value, size);
}

static void put_int(Param *param, size_t at, int32_t value)
{
    put(param, at, &value, sizeof value);
}

static void put_float(Param *param, size_t at, float value)
{
    put(param, at, &value, sizeof value);
}

__attribute__((unused)) static void put_extended(Param *param, size_t at)
{
    memset(param->bytes + at, 0, 120);
    param->bytes[at + 4] = 1;
    param->bytes[at + 5] = 4;
#ifndef NO_MASK
    put_int(param, at + 8, 0xf0);
#endif
    param->bytes[at + 12] = 1;
}

PUBLIC Param rkllm_createDefaultParam(void)
{
    Param param;
    memset(&param, 0xa5, sizeof param);
    put_int(&param, 8, 512);
    put_int(&param, 12, -1);
    put_int(&param, 16, 40);
    put_float(&param, 24, 0.9f);
    put_float(&param, 28, 0.8f);
    put_float(&param, 32, 1.1f);
    put_int(&param, 44, 0);
#ifdef AT
    put_extended(&param, AT);
#endif
#ifdef AT_13
    put_extended(&param, 60);
#endif
#ifdef AT_12
    /* This offset is inside the reserved bytes of 1.3. */
    put_extended(&param, 88);
#endif
#ifdef PRINTS
    printf("I rkllm: half a line {\"error\": \"not the report\"}");
    dprintf(STDOUT_FILENO, "{\"error\": \"not the report either\"} \xff\n");
#endif
#ifdef DIES
    dprintf(STDERR_FILENO, "E RKNN: failed to open rknpu module\n");
    raise(SIGSEGV);
#endif
#ifdef HANGS
    for (;;)
        pause();
#endif
#ifdef LEAVES
    _exit(3);
#endif
    return param;
}

__attribute__((destructor)) static void at_end(void)
{
#ifdef PRINTS_AT_END
    dprintf(STDOUT_FILENO, "I rkllm: goodbye\n");
#endif
#ifdef DIES_AT_END
    raise(SIGSEGV);
#endif
}

#define FAILS(symbol)                                                                              \
    int symbol(void);                                                                              \
    PUBLIC int symbol(void)                                                                        \
    {                                                                                              \
        return -1;                                                                                 \
    }

FAILS(rkllm_init)
FAILS(rkllm_load_lora)
FAILS(rkllm_load_prompt_cache)
FAILS(rkllm_release_prompt_cache)
FAILS(rkllm_destroy)
FAILS(rkllm_run)
FAILS(rkllm_run_async)
FAILS(rkllm_abort)
FAILS(rkllm_is_running)
FAILS(rkllm_clear_kv_cache)
FAILS(rkllm_get_kv_cache_size)
FAILS(rkllm_set_chat_template)
FAILS(rkllm_set_function_tools)
FAILS(rkllm_set_cross_attn_params)
