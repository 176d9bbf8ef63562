/* test_multiply.c - products on fake tiles (tiles.h), on processors without AMX, too. */
#include "faketiles/tiles.h"

#include "model/test_multiply_tiles_x86.c"
