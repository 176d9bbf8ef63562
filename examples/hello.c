/* hello.c - store the KV of a text, then load it. The same program is at the top of tessera.h. */
#include <stdio.h>
#include <tessera/tessera.h>

int main(void)
{
    uint32_t text[4] = {11, 12, 13, 14};
    float kv[2][2][4][8] = {{{{0.5f}}}}, back[2][2][4][8]; // [layer][K, V][token][dim]
    struct tsr_cache *cache;
    struct tsr_space *space;
    struct tsr_client *me;
    struct tsr_space_desc m = {.size = sizeof m, .model = "tiny", .dtype = TSR_DTYPE_F32};
    m.n_layers = 2, m.n_heads = 1, m.k_dim = 8;
    if (tsr_cache_open(&cache, NULL) || tsr_space_open(&space, cache, &m) ||
        tsr_client_open(&me, cache) || tsr_text_store(me, space, text, 4, kv, sizeof kv) < 0)
        return puts(tsr_errmsg()), 1;
    int n = tsr_text_load(me, space, text, 4, back, sizeof back);
    printf("%d of 4 tokens from the cache, K[0] = %g\n", n, (double)back[0][0][0][0]);
    tsr_client_close(me), tsr_space_close(space), tsr_cache_close(cache);
}
