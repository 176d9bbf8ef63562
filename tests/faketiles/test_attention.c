/* test_attention.c - attention on fake tiles (tiles.h), on processors without AMX, too. */
#include "faketiles/tiles.h"

#include "model/test_attention_tiles_x86.c"
