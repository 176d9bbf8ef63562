/* cmd_ingest.c - `tessera ingest`: reads documents into the store ahead of the first question, so
 * that this one finds them known. What the store has already is not computed again. */
#include "cli/asking.h"
#include "cli/store.h"

#include <stdlib.h>

struct ingesting {
    struct tsri_cli *cli;
    struct tsri_reader reader;
    struct tsri_documents documents;
    uint64_t n_tokens, n_stored;
};

/* A piece that was computed just now shows how fast the model reads. */
static void note_speed(const struct ingesting *x, uint32_t n_tokens, double seconds)
{
    char path[4096];
    tsri_reader_beside(&x->reader, x->cli, "speed", path, sizeof path);
    tsri_speed_note(path, x->reader.info.device, n_tokens, seconds);
}

static int ingest_piece(struct ingesting *x, const struct tsri_document *piece)
{
    struct tsri_reader *r = &x->reader;
    struct tsri_dialog d;
    int e = tsri_cli_check(tsri_dialog_init(&d, r->model, tsri_cli_flag(x->cli, "system")));
    if (!e) e = tsri_cli_check(tsri_dialog_add_document(&d, piece));
    if (!e) e = tsri_cli_check(tsri_dialog_add_nothing(&d));
    uint32_t n_primer = tsr_blend_primer(r->blend);
    if (!e && d.n_tokens + n_primer > r->info.context)
        e = tsri_cli_fail(
            "%s: a piece has %zu tokens and the primer %u, the model's context has %u", piece->name,
            d.n_tokens, n_primer, r->info.context);
    struct tsr_ask_desc ask = {.size = sizeof ask,
                               .tokens = d.tokens,
                               .n_tokens = (uint32_t)d.n_tokens,
                               .segments = d.segments,
                               .n_segments = (uint32_t)d.n_segments,
                               .system = 1};
    double start = tsri_cli_now_s();
    int stored = e ? 0 : tsr_blend_learn(r->blend, &ask, NULL, NULL);
    if (stored == TSR_EFULL)
        e = tsri_cli_fail("%s: the store is full", piece->name);
    else if (stored < 0)
        e = tsri_cli_failed();
    else
        note_speed(x, (uint32_t)stored, tsri_cli_now_s() - start);
    x->n_tokens += d.n_tokens;
    if (stored > 0) x->n_stored += (uint32_t)stored;
    tsri_dialog_fini(&d);
    return e;
}

/* Piece by piece, as in a question: each is computed by itself. */
static int ingest_document(struct ingesting *x, const struct tsri_document *doc)
{
    struct tsri_document piece = {.name = doc->name};
    int e = 0;
    for (size_t done = 0; done < doc->bytes && !e; done += piece.bytes) {
        piece.text = doc->text + done;
        piece.bytes = tsri_piece_bytes(piece.text, doc->bytes - done);
        e = ingest_piece(x, &piece);
    }
    return e;
}

int tsri_cmd_ingest(struct tsri_cli *cli)
{
    struct ingesting *x = tsri_alloc(1, sizeof *x);
    if (!x) return tsri_cli_fail("no memory");
    x->cli = cli;
    x->documents.skipped = tsri_ask_skipped;
    int e = tsri_cli_want_args(cli, 1, INT32_MAX);
    for (int i = 0; i < cli->n_args && !e; i++)
        e = tsri_cli_check(tsri_documents_add_path(&x->documents, cli->args[i]));
    if (!e) e = tsri_reader_open(&x->reader, cli);
    double start = tsri_cli_now_s();
    for (size_t i = 0; i < x->documents.n && !e; i++) {
        tsri_cli_progress("ingest", i, x->documents.n);
        e = ingest_document(x, &x->documents.items[i]);
    }
    tsri_cli_progress("ingest", x->documents.n, x->documents.n);
    if (!e && tsr_cache_flush(x->reader.cache) < 0) e = tsri_cli_failed();
    double took = tsri_cli_now_s() - start;
    if (!e && cli->json)
        printf("{\"documents\":%zu,\"tokens\":%llu,\"stored\":%llu,\"seconds\":%.3f}\n",
               x->documents.n, (unsigned long long)x->n_tokens, (unsigned long long)x->n_stored,
               took);
    else if (!e)
        printf("%zu documents, %llu tokens: %llu new in the store, %.1f s\n", x->documents.n,
               (unsigned long long)x->n_tokens, (unsigned long long)x->n_stored, took);
    tsri_reader_close(&x->reader);
    tsri_documents_fini(&x->documents);
    tsri_free(x);
    return e;
}
