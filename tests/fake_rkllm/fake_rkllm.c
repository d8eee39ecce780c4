/* A fake librkllmrt.so that injects faults: its 15 functions, with a script instead of a model.
 *
 * The script is the "model file", a text file whose first line is `fake-rkllm`; README.md describes
 * it. Behaviour that neither the script nor the real library's manual defines is chosen at random
 * (FAKE_RKLLM_SEED). Everything that would crash the real library ends the process with a line on
 * stderr: use of a destroyed handle, a second run on a handle, invalid values in structs.
 * FAKE_RKLLM_LOG names a file for one line per call. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "checks.h"
#include "deliver.h"
#include "replay.h"
#include "run.h"

#ifndef VERSION
#if ABI == 12
#define VERSION "1.2.3"
#elif ABI == 131
#define VERSION "1.3.1"
#else
#define VERSION "1.3.0"
#endif
#endif

/* As in real libraries, whose log has the version only by a format. */
__attribute__((used)) static const char sdk_version[] =
    "RKLLM SDK (version: " VERSION " | target: Linux | build: f8ca3ae8 2025-04-08)";

static const uint32_t ALIVE = 0x4b4c4c4d, DEAD = 0xdeadbeef;

static atomic_int inits;

/* ---- the default parameters ---- */

/* Leaves garbage on the stack, to expose callers that assume zeroes behind a struct. */
static void __attribute__((noinline)) dirty_stack(void)
{
    volatile char mess[16384];
    for (size_t i = 0; i < sizeof mess; i++)
        mess[i] = (char)0xa5;
}

static uint32_t big_cores(void)
{
    uint32_t four = CPU0 | CPU1 | CPU2 | CPU3;
    return sysconf(_SC_NPROCESSORS_CONF) > 4 ? four << 4 : four;
}

RKLLMParam rkllm_createDefaultParam(void)
{
    RKLLMParam param;
    memset(&param, 0xa5, sizeof param);
    param.model_path = NULL;
    param.max_context_len = 512;
    param.max_new_tokens = -1;
    param.top_k = 40;
    param.n_keep = -1;
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
#if ABI == 12
    param.img_start = param.img_end = param.img_content = "";
#else
    param.ignore_eos_token = false;
#endif
    RKLLMExtendParam *extend = &param.extend_param;
    extend->base_domain_id = 0;
    extend->embed_flash = 1;
    extend->enabled_cpus_num = 4;
    extend->enabled_cpus_mask = big_cores();
    extend->n_batch = 1;
    extend->use_cross_attn = 0;
    memset(extend->reserved, 0, sizeof extend->reserved);
    dirty_stack();
    log_call("rkllm_createDefaultParam");
    return param;
}

/* ---- the life of a handle ---- */

Instance *instance_of(LLMHandle handle, const char *call)
{
    check_pointer("LLMHandle", handle);
    Instance *instance = handle;
    if (instance->magic == DEAD)
        refuse("%s: double free or corruption: the handle was destroyed before", call);
    if (instance->magic != ALIVE)
        refuse("%s: %p is no handle", call, handle);
    return instance;
}

static InitOutcome outcome_of(const Script *script)
{
    int number = ++inits;
    if (number > 1 && script->second_init_set)
        return script->second_init;
    return script->init_times == 0 || number <= script->init_times ? script->init : INIT_OK;
}

static Instance *new_instance(Script *script, const RKLLMParam *param)
{
    Instance *instance = take(sizeof *instance);
    instance->magic = ALIVE;
    instance->script = script;
    instance->param = *param;
    instance->model = copy_of(param->model_path);
    pthread_mutex_init(&instance->lock, NULL);
    pthread_condattr_t clock;
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&instance->woken, &clock);
    pthread_condattr_destroy(&clock);
    return instance;
}

static void greet(const Script *script, const RKLLMParam *param)
{
    if (script->chatter < 0)
        return;
    dprintf(script->chatter,
            "I rkllm: rkllm-runtime version: %s, rknpu driver version: 0.9.8, platform: RK3588\n"
            "I rkllm: loading rkllm model from %s\n"
            "I rkllm: rkllm-toolkit version: 1.2.1b1, max_context_limit: %ld, npu_core_num: 3, "
            "target_platform: RK3588, model_dtype: W8A8\n",
            VERSION, param->model_path, script->context);
    Buffer cpus = {0};
    for (uint32_t cpu = 0; cpu < 32; cpu++)
        if (param->extend_param.enabled_cpus_mask >> cpu & 1)
            buffer_format(&cpus, "%s%u", cpus.length == 0 ? "" : ", ", cpu);
    dprintf(script->chatter, "I rkllm: Enabled cpus: [%s]\n",
            cpus.bytes == NULL ? "" : cpus.bytes);
    free(cpus.bytes);
    print_lines(&script->printed);
}

/* Returns the return value of init. */
static int load(const Script *script, const RKLLMParam *param, Position position)
{
    greet(script, param);
    const Load *recorded = load_at(script, position);
    if (recorded != NULL)
        return replay_load(recorded);
    sleep_until(now_ns() + (uint64_t)script->init_ms * MS);
    switch (outcome_of(script)) {
    case INIT_CRASHES:
        crash(script->last_words);
    case INIT_FAILS:
        dprintf(STDERR_FILENO, "E rkllm: %s\n",
                script->last_words == NULL ? "failed to open rknpu device" : script->last_words);
        return (int)script->init_status;
    case INIT_OK:
        break;
    }
    if (param->max_context_len > script->context) {
        dprintf(STDERR_FILENO,
                "E rkllm: max_context[%d] must be less than the model's max_context_limit[%ld]\n",
                param->max_context_len, script->context);
        return -1;
    }
    return 0;
}

int rkllm_init(LLMHandle *handle, RKLLMParam *param, InitCallback callback)
{
    check_pointer("LLMHandle *", handle);
    check_param(param);
    LLMResultCallback result_callback = check_callback(callback);
    log_call("rkllm_init seed=%llu n_batch=%u", (unsigned long long)seed(),
             param->extend_param.n_batch);
    const char *why;
    Script *script = script_read(param->model_path, &why);
    if (script == NULL) {
        dprintf(STDERR_FILENO, "E rkllm: failed to load model %s: %s\n", param->model_path, why);
        return -1;
    }
    Position position = next_position(script, param->model_path);
    int status = load(script, param, position);
    if (status != 0) {
        log_call("init_failed status=%d", status);
        script_free(script);
        return status;
    }
    Instance *instance = new_instance(script, param);
    instance->callback = result_callback;
    instance->process = position.process;
    instance->init = position.init;
    instance->cache_size = ANY;
#if ABI != 12
    instance->callbacks = *callback;
    instance->userdata = callback->result_userdata;
#endif
    *handle = instance;
    return 0;
}

int rkllm_destroy(LLMHandle handle)
{
    log_call("rkllm_destroy");
    Instance *instance = instance_of(handle, "rkllm_destroy");
    if (instance->running)
        refuse("rkllm_destroy: a run is under way");
    sleep_until(now_ns() + (uint64_t)instance->script->destroy_ms * MS);
    instance->ending = true;
    while (instance->late > 0)
        usleep(200);
    /* The instance itself is not freed, so that a second destroy is always detected. */
    instance->magic = DEAD;
    script_free(instance->script);
    replace(instance->chat_template, NULL, NULL, NULL);
    replace(instance->tools, NULL, NULL, NULL);
    while (instance->n_loras > 0)
        free(instance->loras[--instance->n_loras]);
    free(instance->history.bytes);
    tokens_free(&instance->kv);
    tokens_free(&instance->prompt_cache);
    tokens_free(&instance->last_prompt);
    free(instance->last_lora);
    free(instance->kv_lora);
    free(instance->prompt_cache_lora);
    free(instance->model);
    return 0;
}

/* ---- runs ---- */

static Run *begin(LLMHandle handle, RKLLMInput *input, RKLLMInferParam *infer, void *userdata,
                  const char *call)
{
    Instance *instance = instance_of(handle, call);
    for (size_t i = 0; i < instance->param.extend_param.n_batch; i++)
        check_input(&input[i]);
    check_infer(infer);
    return run_new(instance, call, input, infer, userdata);
}

static void *run_thread(void *run)
{
    run_to_end(run);
    return NULL;
}

static int detach(Run *run)
{
    pthread_t thread;
    if (pthread_create(&thread, NULL, run_thread, run) != 0)
        refuse("no thread to be had");
    pthread_detach(thread);
    return 0;
}

int rkllm_run(LLMHandle handle, RKLLMInput *rkllm_input, RKLLMInferParam *rkllm_infer_params,
              void *userdata)
{
    Run *run = begin(handle, rkllm_input, rkllm_infer_params, userdata, "rkllm_run");
    return run->instance->param.is_async ? detach(run) : run_to_end(run);
}

int rkllm_run_async(LLMHandle handle, RKLLMInput *rkllm_input, RKLLMInferParam *rkllm_infer_params,
                    void *userdata)
{
    return detach(begin(handle, rkllm_input, rkllm_infer_params, userdata, "rkllm_run_async"));
}

int rkllm_abort(LLMHandle handle)
{
    Instance *instance = instance_of(handle, "rkllm_abort");
    log_call("rkllm_abort running=%d inside_callback=%d", instance->running, inside_callback());
    if (!instance->running)
        return -1;
    pthread_mutex_lock(&instance->lock);
    if (instance->abort_at == 0)
        instance->abort_at = now_ns();
    pthread_cond_broadcast(&instance->woken);
    pthread_mutex_unlock(&instance->lock);
    return 0;
}

int rkllm_is_running(LLMHandle handle)
{
    Instance *instance = instance_of(handle, "rkllm_is_running");
    log_call("rkllm_is_running");
    /* The two headers document opposite return values. */
    return ABI == 12 ? !instance->running : instance->running;
}
