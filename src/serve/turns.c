/* turns.c - whose turn it is. Each client has the time that was spent on its tasks; the one with the
 * least is next. */
#include "serve/task.h"

int tsri_turns_init(struct tsri_turns *t, uint32_t tasks_max)
{
    t->max = tasks_max;
    t->items = tsri_alloc(tasks_max, sizeof *t->items);
    return t->items ? 0 : TSR_ENOMEM;
}

void tsri_turns_fini(struct tsri_turns *t)
{
    tsri_free(t->items);
    *t = (struct tsri_turns){0};
}

struct tsri_client_turn *tsri_turns_enter(struct tsri_turns *t, uint64_t client)
{
    struct tsri_client_turn *spare = NULL;
    uint64_t least = UINT64_MAX;
    for (uint32_t i = 0; i < t->max; i++) {
        struct tsri_client_turn *one = &t->items[i];
        if (one->n_tasks && one->client == client) {
            one->n_tasks++;
            return one;
        }
        if (!one->n_tasks && !spare) spare = one;
        if (one->n_tasks && one->used_ns < least) least = one->used_ns;
    }
    TSR_ASSERT(spare);
    *spare = (struct tsri_client_turn){
        .client = client, .used_ns = least == UINT64_MAX ? 0 : least, .n_tasks = 1};
    return spare;
}

void tsri_turns_leave(struct tsri_client_turn *turn)
{
    TSR_ASSERT(turn->n_tasks);
    turn->n_tasks--;
}
