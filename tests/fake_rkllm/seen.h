/* A copy of a run's input, because the caller may free it once an asynchronous run has started. */
#ifndef SEEN_H
#define SEEN_H

#include "fake.h"

typedef struct {
    int32_t top_k;
    float top_p;
    float temperature;
    float repeat_penalty;
    float frequency_penalty;
    float presence_penalty;
    int32_t mirostat;
    float mirostat_tau;
    float mirostat_eta;
} Sampling;

typedef struct {
    char *role;
    bool enable_thinking;
    RKLLMInputType type;
    /* The prompt's text; for token ids, the ids as text. */
    char *prompt;
    Tokens tokens;
    /* The images: the sum of each one's embeddings, and the texts around and in them. */
    double *image_sums;
    size_t images;
    size_t image_tokens;
    size_t image_width;
    size_t image_height;
    char *image_marks[3];
    RKLLMInferMode mode;
    char *lora;
    bool saves_cache;
    char *cache_path;
    bool keep_history;
    /* The run's own values if it has them, else those of init. */
    Sampling sampling;
    long max_new_tokens;
} Seen;

Seen seen_of(const Instance *instance, const RKLLMInput *input, const RKLLMInferParam *infer);
void seen_free(Seen *seen);
/* Returns the last number in the prompt, 0 without one. */
long seen_number(const Seen *seen);
void seen_json(const Seen *seen, const Instance *instance, unsigned long run, Buffer *json);

#endif
