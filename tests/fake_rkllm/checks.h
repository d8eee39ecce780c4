/* Checks the caller's arguments. Invalid values usually mean that it uses the wrong layout. */
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
