#include "replay.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "deliver.h"
#include "keep.h"
#include "speak.h"

/* ---- loads ---- */

/* A model that is replayed in this process, which may replay several. */
typedef struct Playing {
    char *model;
    Position position;
    struct Playing *next;
} Playing;

/* Returns the number of processes that have replayed a model, including this one. */
static long count_process(const char *model)
{
    Buffer path = {0};
    buffer_format(&path, "%s.processes", model);
    int file = open(path.bytes, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (file < 0 || write(file, "\n", 1) != 1)
        refuse("%s cannot be written", path.bytes);
    long count = (long)lseek(file, 0, SEEK_END);
    close(file);
    free(path.bytes);
    return count;
}

static long lesser(long one, long other)
{
    return one < other ? one : other;
}

static long last_init(const Script *script, long process)
{
    long last = 1;
    for (size_t i = 0; i < script->n_loads; i++)
        if (script->loads[i].process == process && script->loads[i].init > last)
            last = script->loads[i].init;
    return last;
}

Position next_position(const Script *script, const char *model)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static Playing *first;
    if (script->processes == 0)
        return (Position){0};
    pthread_mutex_lock(&lock);
    Playing *playing = first;
    while (playing != NULL && strcmp(playing->model, model) != 0)
        playing = playing->next;
    if (playing == NULL) {
        playing = take(sizeof *playing);
        playing->model = copy_of(model);
        playing->position.process = lesser(count_process(model), script->processes);
        playing->next = first;
        first = playing;
    }
    Position *position = &playing->position;
    position->init = lesser(position->init + 1, last_init(script, position->process));
    Position now = *position;
    pthread_mutex_unlock(&lock);
    return now;
}

const Load *load_at(const Script *script, Position position)
{
    for (size_t i = 0; i < script->n_loads; i++)
        if (script->loads[i].process == position.process && script->loads[i].init == position.init)
            return &script->loads[i];
    return NULL;
}

int replay_load(const Load *load)
{
    uint64_t began = now_ns();
    for (size_t i = 0; i < load->count; i++)
        dprintf(STDERR_FILENO, "%s\n", load->lines[i]);
    sleep_until(began + (uint64_t)load->us * US);
    if (load->ending == ENDS_CRASH)
        crash(NULL);
    while (load->ending == ENDS_HANG)
        sleep(3600);
    return (int)load->status;
}

/* ---- runs ---- */

/* The numbers of a row are 0, 0.01, 0.02 and so on. */
static float *rows_of(const Recorded *recorded)
{
    size_t count = (size_t)recorded->rows * (size_t)recorded->width;
    float *numbers = take((count + 1) * sizeof *numbers);
    for (size_t i = 0; i < count; i++)
        numbers[i] = (float)(i % (size_t)recorded->width) / 100;
    return numbers;
}

static RKLLMResult token_of(const Recorded *recorded, size_t place, int32_t next_id)
{
    if (place >= recorded->count)
        return result_of(NULL, -1);
    const RecordedToken *token = &recorded->tokens[place];
    return result_of(token->text, token->has_id ? (int32_t)token->id : next_id);
}

static void play(Run *run, const Recorded *recorded)
{
    bool is_token = recorded->state == RKLLM_RUN_NORMAL || recorded->state == RKLLM_RUN_WAITING;
    RKLLMResult *results = take(run->places * sizeof *results);
    float *numbers = rows_of(recorded);
    int rows = (int)recorded->rows, width = (int)recorded->width;
    for (size_t i = 0; i < run->places; i++) {
        results[i] = token_of(recorded, i, (int32_t)(1000 + run->generated % 30000));
        if (recorded->state == RKLLM_RUN_FINISH)
            results[i].perf = perf_of(run);
        else if (recorded->numbers == NUMBERS_LOGITS)
            results[i].logits = (RKLLMResultLogits){numbers, width, rows};
        else if (recorded->numbers == NUMBERS_HIDDEN)
            results[i].last_hidden_layer = (RKLLMResultLastHiddenLayer){numbers, width, rows};
    }
    if (is_token && recorded->numbers == NUMBERS_NONE) {
        run->generated++;
        run->last_id = results[0].token_id;
        if (run->seen.keep_history)
            tokens_add(&run->answered, run->last_id);
    }
    run->other_thread = recorded->other;
    deliver_all(run, (LLMCallState)recorded->state, results);
    spoil(numbers, (char)0xa5, (size_t)rows * (size_t)width * sizeof *numbers);
    free(numbers);
    free(results);
}

/* Whether a recorded token is left from this callback on; an abort after the last one is too late. */
static bool has_tokens_from(const Answer *answer, size_t first)
{
    for (size_t i = first; i < answer->n_recorded; i++) {
        const Recorded *recorded = &answer->recorded[i];
        if (recorded->state == RKLLM_RUN_FINISH)
            continue;
        for (size_t place = 0; place < recorded->count; place++)
            if (!recorded->tokens[place].has_id || recorded->tokens[place].id >= 0)
                return true;
    }
    return false;
}

static void play_all(Run *run)
{
    const Answer *answer = run->answer;
    for (size_t i = 0; i < answer->n_recorded; i++) {
        uint64_t due = run->began + (uint64_t)answer->recorded[i].at * US;
        /* An abort does not end a prefill. */
        if (i == 0)
            sleep_until(due);
        else
            wait_until(run, due);
        if (i == 0)
            run->prefilled = now_ns();
        if (aborted(run) && (i == 0 || has_tokens_from(answer, i))) {
            end(run, END_ABORTED);
            if (answer->finishes && run->abort_finishes)
                finish(run);
            return;
        }
        play(run, &answer->recorded[i]);
    }
    wait_until(run, answer->ending == ENDS_HANG ? NEVER : run->began + (uint64_t)answer->ends_at * US);
    if (answer->ending == ENDS_CRASH)
        crash(NULL);
    run->status = (int)answer->status;
    end(run, run->status == 0 ? END_FINISHED : END_FAILED);
}

void replay(Run *run)
{
    Instance *instance = run->instance;
    run->began = run->prefilled = now_ns();
    if (!run->seen.keep_history)
        forget_history(instance);
    log_context(run);
    run->has_read = true;
    print_lines(&run->answer->printed);
    play_all(run);
    remember(run);
    save_cache(run);
    instance->cache_size = run->answer->cache_size;
}
