/* What a multimodal input of 1.3.1 is. */
#ifndef RKLLM_MULTIMODAL_H
#define RKLLM_MULTIMODAL_H

typedef struct {
    char *prompt;
    struct {
        float *image_embed;
        size_t n_image_tokens;
        size_t n_image;
        const char *image_start;
        const char *image_end;
        const char *image_content;
        size_t image_width;
        size_t image_height;
    } image;
    struct {
        float *video_embed;
        size_t n_frame_tokens;
        size_t n_frame_per_video;
        size_t n_video;
        const char *video_start;
        const char *video_end;
        const char *video_content;
        size_t frame_width;
        size_t frame_height;
    } video;
    struct {
        float *audio_embed;
        size_t n_audio_tokens;
        size_t n_audio;
        const char *audio_start;
        const char *audio_end;
        const char *audio_content;
    } audio;
} RKLLMMultiModalInput;

#endif
