/* Is what the caller passes sane? Where it is not, its idea of the layout is likely wrong. */
#ifndef CHECKS_H
#define CHECKS_H

#include "fake.h"

void check_pointer(const char *what, const void *pointer);
void check_param(const RKLLMParam *param);
/* Returns the callback for results. */
LLMResultCallback check_callback(InitCallback callback);
void check_input(const RKLLMInput *input);
void check_infer(const RKLLMInferParam *infer);
void check_lora(const RKLLMLoraAdapter *adapter);
void check_cross_attention(const RKLLMCrossAttnParam *param);

#endif
