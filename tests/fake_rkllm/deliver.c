#include "deliver.h"

#include <stdlib.h>
#include <string.h>

static _Thread_local bool inside;

bool inside_callback(void)
{
    return inside;
}

RKLLMResult result_of(const char *text, int32_t id)
{
    RKLLMResult result;
    memset(&result, 0xa5, sizeof result);
    memset(&result.last_hidden_layer, 0, sizeof result.last_hidden_layer);
    memset(&result.logits, 0, sizeof result.logits);
    result.text = text;
    result.token_id = id;
    return result;
}

static int call(LLMResultCallback callback, RKLLMResult *result, void *userdata, LLMCallState state)
{
    inside = true;
    int answer = callback(result, userdata, state);
    inside = false;
    return answer;
}

static size_t places_of(const Instance *instance)
{
    return instance->param.extend_param.n_batch;
}

/* Every result is on the heap and is overwritten before it is freed: a binding that keeps a pointer
 * reads exclamation marks or worse. */
static int call_with_copies(const Instance *instance, const RKLLMResult *results, void *userdata,
                            LLMCallState state, int (*how)(void *, RKLLMResult *, LLMCallState),
                            void *with)
{
    size_t places = places_of(instance);
    RKLLMResult *passed = take(places * sizeof *passed);
    char **texts = take(places * sizeof *texts);
    for (size_t i = 0; i < places; i++) {
        passed[i] = results[i];
        passed[i].text = texts[i] = copy_of(results[i].text);
    }
    int answer = how == NULL ? call(instance->callback, passed, userdata, state)
                             : how(with, passed, state);
    for (size_t i = 0; i < places; i++) {
        if (texts[i] != NULL)
            spoil(texts[i], '!', strlen(texts[i]));
        free(texts[i]);
    }
    free(texts);
    spoil(passed, (char)0xa5, places * sizeof *passed);
    free(passed);
    if (answer < 0 || answer > (ABI == 12 ? 1 : 2))
        refuse("the callback returned %d", answer);
    return answer;
}

/* The same for one result; the other sequences of a batch have none. */
static int call_with_copy(const Instance *instance, RKLLMResult result, void *userdata,
                          LLMCallState state, int (*how)(void *, RKLLMResult *, LLMCallState),
                          void *with)
{
    size_t places = places_of(instance);
    if (places == 1)
        return call_with_copies(instance, &result, userdata, state, how, with);
    RKLLMResult *results = take(places * sizeof *results);
    for (size_t i = 0; i < places; i++)
        results[i] = i == 0 ? result : result_of(NULL, -1);
    int answer = call_with_copies(instance, results, userdata, state, how, with);
    free(results);
    return answer;
}

/* ---- alternating threads ---- */

/* A second thread that makes single callbacks for the generating thread, which waits meanwhile. */
struct Stage {
    const Run *run;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t turned;
    bool over;
    bool its_turn;
    RKLLMResult *result;
    LLMCallState state;
    int answer;
    bool used_last;
};

static void *stage_thread(void *argument)
{
    struct Stage *stage = argument;
    pthread_mutex_lock(&stage->lock);
    for (;;) {
        while (!stage->its_turn && !stage->over)
            pthread_cond_wait(&stage->turned, &stage->lock);
        if (stage->over)
            break;
        const Run *run = stage->run;
        stage->answer = call(run->instance->callback, stage->result, run->userdata, stage->state);
        stage->its_turn = false;
        pthread_cond_broadcast(&stage->turned);
    }
    pthread_mutex_unlock(&stage->lock);
    return NULL;
}

static int call_on_stage(void *argument, RKLLMResult *result, LLMCallState state)
{
    struct Stage *stage = argument;
    pthread_mutex_lock(&stage->lock);
    stage->result = result;
    stage->state = state;
    stage->its_turn = true;
    pthread_cond_broadcast(&stage->turned);
    while (stage->its_turn)
        pthread_cond_wait(&stage->turned, &stage->lock);
    pthread_mutex_unlock(&stage->lock);
    return stage->answer;
}

static void start(pthread_t *thread, void *(*function)(void *), void *argument)
{
    if (pthread_create(thread, NULL, function, argument) != 0)
        refuse("no thread to be had");
}

static void alternating(Run *run, void (*generate)(Run *run))
{
    struct Stage stage = {
        .run = run,
        .lock = PTHREAD_MUTEX_INITIALIZER,
        .turned = PTHREAD_COND_INITIALIZER,
    };
    start(&stage.thread, stage_thread, &stage);
    run->stage = &stage;
    generate(run);
    run->stage = NULL;
    pthread_mutex_lock(&stage.lock);
    stage.over = true;
    pthread_cond_broadcast(&stage.turned);
    pthread_mutex_unlock(&stage.lock);
    pthread_join(stage.thread, NULL);
}

/* ---- one foreign thread ---- */

typedef struct {
    Run *run;
    void (*generate)(Run *run);
} Task;

static void *foreign_thread(void *argument)
{
    Task *task = argument;
    task->generate(task->run);
    return NULL;
}

void on_its_thread(Run *run, void (*generate)(Run *run))
{
    Task task = {run, generate};
    pthread_t thread;
    switch (run->threads) {
    case THREAD_FOREIGN:
        start(&thread, foreign_thread, &task);
        pthread_join(thread, NULL);
        break;
    case THREAD_ALTERNATE:
        alternating(run, generate);
        break;
    default:
        generate(run);
    }
}

/* Returns whether the second thread makes the next callback. */
static bool elsewhere(const Run *run)
{
    if (run->stage == NULL)
        return false;
    if (run->other_thread != ANY)
        return run->other_thread;
    return run->stage->used_last = !run->stage->used_last;
}

int deliver(Run *run, LLMCallState state, RKLLMResult result)
{
    return call_with_copy(run->instance, result, run->userdata, state,
                          elsewhere(run) ? call_on_stage : NULL, run->stage);
}

void deliver_all(Run *run, LLMCallState state, const RKLLMResult *results)
{
    int answer = call_with_copies(run->instance, results, run->userdata, state,
                                  elsewhere(run) ? call_on_stage : NULL, run->stage);
    if (answer == 1)
        refuse("the callback paused several sequences");
}

/* ---- late callbacks ---- */

typedef struct {
    Instance *instance;
    void *userdata;
    const Answer *answer;
    uint64_t next;
} Late;

static void *late_thread(void *argument)
{
    Late *late = argument;
    Instance *instance = late->instance;
    const Answer *answer = late->answer;
    uint64_t between = (uint64_t)answer->late_ms * MS / (uint64_t)answer->late;
    for (long i = 1; i <= answer->late && !instance->ending; i++) {
        sleep_until(late->next += between);
        if (instance->ending)
            break;
        bool finish = answer->late_finish && i == answer->late;
        call_with_copy(instance, result_of("late", (int32_t)i), late->userdata,
                       finish ? RKLLM_RUN_FINISH : RKLLM_RUN_NORMAL, NULL, NULL);
    }
    log_call("late done");
    free(late);
    instance->late--;
    return NULL;
}

void leave_late_callbacks(const Run *run)
{
    if (run->answer == NULL || run->answer->late == 0)
        return;
    Late *late = take(sizeof *late);
    *late = (Late){run->instance, run->userdata, run->answer, now_ns()};
    run->instance->late++;
    pthread_t thread;
    start(&thread, late_thread, late);
    pthread_detach(thread);
}
