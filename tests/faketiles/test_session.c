/* test_session.c - prompts on fake tiles (tiles.h), on processors without AMX, too. */
#define TILES_ALONE 1
#include "model/test_ggml_session.c"
