/* Parses the lines of the "model file". */
#include "script.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "reader.h"

static const char MAGIC[] = "fake-rkllm";

/* ---- the lines before the first answer ---- */

static void read_init(Reader *reader)
{
    Script *script = reader->script;
    for (Item item; next_item(reader, &item);) {
        if (is_setting(&item, "ms"))
            script->init_ms = number(reader, &item, 0);
        else if (is_word(&item, "fails"))
            script->init = INIT_FAILS;
        else if (is_setting(&item, "fails")) {
            script->init = INIT_FAILS;
            script->init_status = number(reader, &item, -MOST);
        } else if (is_setting(&item, "times"))
            script->init_times = number(reader, &item, 1);
        else if (is_word(&item, "crashes"))
            script->init = INIT_CRASHES;
        else if (is_text(&item))
            script->last_words = plain(reader, &item);
        else
            unknown(reader, &item);
    }
}

static Ending ending_of(const Item *item)
{
    return is_word(item, "crashes") ? ENDS_CRASH : ENDS_HANG;
}

static bool is_ending(const Item *item)
{
    return is_word(item, "crashes") || is_word(item, "hangs");
}

static void count_processes(Script *script, long process)
{
    if (process > script->processes)
        script->processes = process;
}

static void read_load(Reader *reader)
{
    Script *script = reader->script;
    script->loads = grown(script, script->loads, script->n_loads, sizeof *script->loads);
    Load *load = &script->loads[script->n_loads++];
    *load = (Load){.process = 1, .init = 1};
    for (Item item; next_item(reader, &item);) {
        if (is_setting(&item, "process"))
            load->process = number(reader, &item, 1);
        else if (is_setting(&item, "init"))
            load->init = number(reader, &item, 1);
        else if (is_setting(&item, "us"))
            load->us = number(reader, &item, 0);
        else if (is_setting(&item, "returns"))
            load->status = number(reader, &item, -MOST);
        else if (is_ending(&item))
            load->ending = ending_of(&item);
        else if (is_text(&item)) {
            load->lines = grown(script, load->lines, load->count, sizeof *load->lines);
            load->lines[load->count++] = plain(reader, &item);
        } else
            unknown(reader, &item);
    }
    count_processes(script, load->process);
}

static void read_print(Reader *reader, Lines *lines)
{
    for (Item item; next_item(reader, &item);) {
        if (!is_text(&item))
            unknown(reader, &item);
        lines->texts = grown(reader->script, lines->texts, lines->count, sizeof *lines->texts);
        lines->texts[lines->count++] = plain(reader, &item);
    }
}

void print_lines(const Lines *lines)
{
    for (size_t i = 0; i < lines->count; i++)
        dprintf(STDERR_FILENO, "%s\n", lines->texts[i]);
}

static bool read_global(Reader *reader, const Item *verb)
{
    Script *script = reader->script;
    if (is_word(verb, "init"))
        read_init(reader);
    else if (is_word(verb, "load"))
        read_load(reader);
    else if (is_word(verb, "second_init")) {
        script->second_init = (InitOutcome)CHOICE(reader, "works", "fails", "crashes");
        script->second_init_set = true;
    } else if (is_word(verb, "destroy_ms"))
        script->destroy_ms = argument(reader, 0);
    else if (is_word(verb, "context"))
        script->context = argument(reader, 1);
    else if (is_word(verb, "chatter"))
        script->chatter = (const int[]){STDOUT_FILENO, STDERR_FILENO,
                                        -1}[CHOICE(reader, "stdout", "stderr", "none")];
    else if (is_word(verb, "print"))
        read_print(reader, &script->printed);
    else if (is_word(verb, "overflow"))
        script->overflow_error = CHOICE(reader, "silent", "error");
    else if (is_word(verb, "vocabulary"))
        script->vocabulary = argument(reader, 1);
    else if (is_word(verb, "window"))
        script->window_ends = CHOICE(reader, "shifts", "ends") == 1;
    else if (is_word(verb, "clear"))
        script->clear = (ClearOutcome)CHOICE(reader, "works", "fails", "lies");
    else if (is_word(verb, "cache_size"))
        script->size_fails = CHOICE(reader, "works", "fails") == 1;
    else if (is_word(verb, "prompt_cache"))
        script->saves_nothing = CHOICE(reader, "saved", "not_saved") == 1;
    else if (is_word(verb, "prefix_reuse"))
        script->reuses_prefix = CHOICE(reader, "off", "on") == 1;
    else if (is_word(verb, "history_logits"))
        script->history_logits_crash = CHOICE(reader, "work", "crash") == 1;
    else if (is_word(verb, "aborted_save"))
        script->aborted_save_spoils = CHOICE(reader, "harmless", "spoils") == 1;
    else
        return false;
    return true;
}

/* ---- the lines of an answer ---- */

static void read_answer(Reader *reader)
{
    Script *script = reader->script;
    script->answers = grown(script, script->answers, script->count, sizeof *script->answers);
    Answer *answer = reader->answer = &script->answers[script->count++];
    *answer = (Answer){.run = ANY,
                       .process = ANY,
                       .init = ANY,
                       .abort_ms = ANY,
                       .abort_finishes = ANY,
                       .finishes = true,
                       .cache_size = ANY};
    for (Item item; next_item(reader, &item);) {
        if (is_setting(&item, "run"))
            answer->run = number(reader, &item, 1);
        else if (is_setting(&item, "process"))
            answer->process = number(reader, &item, 1);
        else if (is_setting(&item, "init"))
            answer->init = number(reader, &item, 1);
        else if (is_setting(&item, "when"))
            answer->when = plain(reader, &item);
        else
            unknown(reader, &item);
    }
    count_processes(script, answer->process);
}

static void add_text(Reader *reader, Step *step, Text text)
{
    step->texts = grown(reader->script, step->texts, step->count, sizeof *step->texts);
    step->texts[step->count++] = text;
}

static void read_step(Reader *reader, StepKind kind)
{
    Answer *answer = reader->answer;
    answer->steps = grown(reader->script, answer->steps, answer->count, sizeof *answer->steps);
    Step *step = &answer->steps[answer->count++];
    *step = (Step){.kind = kind, .id = ANY, .times = 1};
    bool says = kind <= STEP_WAITING;
    for (Item item; next_item(reader, &item);) {
        if (is_text(&item))
            add_text(reader, step, item.text);
        else if (is_word(&item, "null"))
            add_text(reader, step, (Text){.is_null = true});
        else if (is_setting(&item, "us"))
            step->us = number(reader, &item, 0);
        else if (says && is_setting(&item, "id"))
            step->id = number(reader, &item, 0);
        else if (says && is_setting(&item, "times"))
            step->times =
                strcmp(plain(reader, &item), "asked") == 0 ? ASKED : number(reader, &item, 0);
        else
            unknown(reader, &item);
    }
    if (kind < STEP_WAITING && step->count == 0)
        wrong(reader, "what is to be said?");
    if ((!says || kind == STEP_SPELL) && step->count > 1)
        wrong(reader, "one text is enough");
}

static void read_prefill(Reader *reader)
{
    reader->answer->prefill_ms = argument(reader, 0);
    for (Item item; next_item(reader, &item);) {
        if (is_word(&item, "hears"))
            reader->answer->prefill_hears = true;
        else if (is_setting(&item, "us_per_token"))
            reader->answer->prefill_us_per_token = number(reader, &item, 0);
        else
            unknown(reader, &item);
    }
}

static void read_abort(Reader *reader)
{
    Answer *answer = reader->answer;
    for (Item item; next_item(reader, &item);) {
        if (is_word(&item, "ignored"))
            answer->abort_ignored = true;
        else if (is_setting(&item, "ms"))
            answer->abort_ms = number(reader, &item, 0);
        else if (is_word(&item, "finish"))
            answer->abort_finishes = true;
        else if (is_word(&item, "no_finish"))
            answer->abort_finishes = false;
        else
            unknown(reader, &item);
    }
}

static void read_finish(Reader *reader)
{
    Answer *answer = reader->answer;
    Item item;
    if (!next_item(reader, &item))
        wrong(reader, "finish with what?");
    answer->finish_set = true;
    if (is_word(&item, "none"))
        answer->finishes = false;
    else if (is_word(&item, "null"))
        answer->finish.is_null = true;
    else if (is_text(&item))
        answer->finish = item.text;
    else
        unknown(reader, &item);
}

static void read_perf(Reader *reader)
{
    static const char *const names[PERF_NUMBERS] = {
        [PREFILL_TIME] = "prefill_time_ms",   [PREFILL_TOKENS] = "prefill_tokens",
        [GENERATE_TIME] = "generate_time_ms", [GENERATE_TOKENS] = "generate_tokens",
        [MEMORY] = "memory_usage_mb",
    };
    for (Item item; next_item(reader, &item);) {
        int found = -1;
        for (int i = 0; i < PERF_NUMBERS; i++)
            if (is_setting(&item, names[i]))
                found = i;
        if (found < 0)
            unknown(reader, &item);
        const char *value = plain(reader, &item);
        reader->answer->perf[found] = (Correction){
            .set = true,
            .relative = *value == '+' || *value == '-',
            .value = number_between(reader, value, (double)-MOST, (double)MOST),
        };
    }
}

static void read_late(Reader *reader)
{
    Answer *answer = reader->answer;
    answer->late = argument(reader, 1);
    answer->late_ms = 5;
    for (Item item; next_item(reader, &item);) {
        if (is_setting(&item, "ms"))
            answer->late_ms = number(reader, &item, 1);
        else if (is_word(&item, "finish"))
            answer->late_finish = true;
        else
            unknown(reader, &item);
    }
}

static void add_token(Reader *reader, Recorded *recorded, RecordedToken token)
{
    recorded->tokens =
        grown(reader->script, recorded->tokens, recorded->count, sizeof *recorded->tokens);
    recorded->tokens[recorded->count++] = token;
}

static void read_result(Reader *reader)
{
    Answer *answer = reader->answer;
    answer->recorded =
        grown(reader->script, answer->recorded, answer->n_recorded, sizeof *answer->recorded);
    Recorded *recorded = &answer->recorded[answer->n_recorded++];
    *recorded = (Recorded){0};
    RecordedToken token = {0};
    for (Item item; next_item(reader, &item);) {
        if (is_setting(&item, "at"))
            recorded->at = number(reader, &item, 0);
        else if (is_setting(&item, "state"))
            recorded->state = (int)number(reader, &item, -MOST);
        else if (is_word(&item, "other"))
            recorded->other = true;
        else if (is_setting(&item, "rows"))
            recorded->rows = number(reader, &item, 0);
        else if (is_setting(&item, "width"))
            recorded->width = number(reader, &item, 0);
        else if (is_word(&item, "hidden"))
            recorded->numbers = NUMBERS_HIDDEN;
        else if (is_word(&item, "logits"))
            recorded->numbers = NUMBERS_LOGITS;
        else if (is_setting(&item, "id")) {
            token.has_id = true;
            token.id = number(reader, &item, -MOST);
        } else if (is_word(&item, "null") || is_text(&item)) {
            token.text = is_text(&item) ? plain(reader, &item) : NULL;
            add_token(reader, recorded, token);
            token = (RecordedToken){0};
        } else
            unknown(reader, &item);
    }
}

static void read_ends(Reader *reader)
{
    Answer *answer = reader->answer;
    answer->is_recorded = true;
    for (Item item; next_item(reader, &item);) {
        if (is_setting(&item, "at"))
            answer->ends_at = number(reader, &item, 0);
        else if (is_setting(&item, "returns"))
            answer->status = number(reader, &item, -MOST);
        else if (is_ending(&item))
            answer->ending = ending_of(&item);
        else
            unknown(reader, &item);
    }
}

static bool read_answer_line(Reader *reader, const Item *verb)
{
    Answer *answer = reader->answer;
    if (is_word(verb, "say"))
        read_step(reader, STEP_SAY);
    else if (is_word(verb, "spell"))
        read_step(reader, STEP_SPELL);
    else if (is_word(verb, "waiting"))
        read_step(reader, STEP_WAITING);
    else if (is_word(verb, "error"))
        read_step(reader, STEP_ERROR);
    else if (is_word(verb, "crash"))
        read_step(reader, STEP_CRASH);
    else if (is_word(verb, "hang"))
        read_step(reader, STEP_HANG);
    else if (is_word(verb, "print"))
        read_print(reader, &answer->printed);
    else if (is_word(verb, "thread"))
        answer->threads = THREAD_CALLER + (Threads)CHOICE(reader, "caller", "foreign", "alternate");
    else if (is_word(verb, "prefill_ms"))
        read_prefill(reader);
    else if (is_word(verb, "abort"))
        read_abort(reader);
    else if (is_word(verb, "finish"))
        read_finish(reader);
    else if (is_word(verb, "perf"))
        read_perf(reader);
    else if (is_word(verb, "late"))
        read_late(reader);
    else if (is_word(verb, "result"))
        read_result(reader);
    else if (is_word(verb, "ends"))
        read_ends(reader);
    else if (is_word(verb, "cache_size"))
        answer->cache_size = argument(reader, 0);
    else if (is_word(verb, "cache"))
        answer->cached = CACHE_TOLD + (Cached)CHOICE(reader, "told", "less", "more", "ended");
    else if (is_word(verb, "returns")) {
        answer->status = argument(reader, -MOST);
        answer->status_set = true;
    } else
        return false;
    return true;
}

static void read_line(Reader *reader)
{
    Item verb;
    if (!next_item(reader, &verb))
        return;
    bool known = true;
    if (is_word(&verb, "answer"))
        read_answer(reader);
    else if (reader->answer == NULL)
        known = read_global(reader, &verb);
    else
        known = read_answer_line(reader, &verb);
    if (!known)
        unknown(reader, &verb);
    Item rest;
    if (next_item(reader, &rest))
        unknown(reader, &rest);
}

Script *script_read(const char *path, const char **why)
{
    FILE *file = fopen(path, "re");
    if (file == NULL) {
        *why = strerror(errno);
        return NULL;
    }
    Script *script = take(sizeof *script);
    *script = (Script){.init_status = -1,
                       .context = 16384,
                       .chatter = STDOUT_FILENO,
                       .overflow_error = ANY,
                       .reuses_prefix = ABI != 12};
    Reader reader = {.script = script, .path = path};
    char *line = NULL;
    size_t room = 0;
    bool is_model = false;
    for (ssize_t length; (length = getline(&line, &room, file)) >= 0;) {
        if (length > 0 && line[length - 1] == '\n')
            line[length - 1] = '\0';
        if (++reader.line == 1 && !(is_model = strcmp(line, MAGIC) == 0))
            break;
        reader.at = line;
        if (reader.line > 1)
            read_line(&reader);
    }
    free(line);
    fclose(file);
    if (!is_model) {
        *why = "not an rkllm model";
        script_free(script);
        return NULL;
    }
    return script;
}

void script_free(Script *script)
{
    drop_kept(script);
    free(script);
}
