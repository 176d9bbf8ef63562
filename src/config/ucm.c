/* ucm.c - UCM's blending as our options. UCM has it below ucm_sparse_config:
 *
 *     Blend: {chunk_end_token_id: 29, compute_meta: {model.layers.1.self_attn.attn: {ratio: 0.2}}}
 *
 * The YAML reader passes the mapping as lines of text, keys joined by dots:
 *
 *     chunk_end_token_id=29
 *     compute_meta.model.layers.1.self_attn.attn.ratio=0.2
 *
 * UCM selects the tokens whose K deviates most at the named layers, a share of them at each. That is
 * what blend_check_layers and blend_recompute_ratios do. */
#include "config/config.h"

#include <stdlib.h>

#define BLEND "ucm_sparse_config_Blend"
#define LAYERS "compute_meta."
#define RATIO ".ratio"

struct blend {
    struct tsr_config *cfg;
    const struct tsri_place *place;
    size_t n;
    struct layer_share {
        unsigned long layer;
        const char *ratio;
    } shares[TSRI_LIST_MAX];
};

int tsri_ucm_blend_anywhere(struct tsr_config *cfg, const struct tsri_place *place)
{
    static const char *const options[] = {"blend", "blend_any_offset", "blend_from_traffic"};
    int err = 0;
    for (size_t i = 0; !err && i < TSRI_COUNT(options); i++)
        err = tsri_config_put(cfg, options[i], "true", place);
    return err;
}

static int refuse(const struct blend *b, const char *key, const char *why)
{
    char where[TSRI_PLACE_BYTES], shown[80];
    return tsri_fail(TSR_ECONFIG, "%s" BLEND ": \"%s\" %s",
                     tsri_place_text(b->place, where, sizeof where),
                     tsri_printable(key, shown, sizeof shown), why);
}

/* The layer in the name of a module: model.layers.1.self_attn.attn. */
static bool layer_of(const char *module, unsigned long *out)
{
    static const char before[] = "layers.";
    const char *at = strstr(module, before);
    if (!at) return false;
    at += sizeof before - 1;
    size_t n = strspn(at, "0123456789");
    if (n == 0 || n > 4 || (at[n] && at[n] != '.')) return false;
    *out = strtoul(at, NULL, 10);
    return true;
}

/* Keeps the shares in the order of their layers. */
static int add_share(struct blend *b, const char *module, const char *ratio)
{
    struct layer_share new = {0, ratio};
    if (!layer_of(module, &new.layer)) return refuse(b, module, "names no layer");
    if (b->n == TSRI_LIST_MAX) return refuse(b, module, "is one layer too many");
    size_t i = b->n;
    for (; i > 0 && b->shares[i - 1].layer >= new.layer; i--) {
        if (b->shares[i - 1].layer == new.layer) return refuse(b, module, "names a layer again");
        b->shares[i] = b->shares[i - 1];
    }
    b->shares[i] = new;
    b->n++;
    return 0;
}

static int put_line(struct blend *b, char *key, const char *value)
{
    size_t n = strlen(key);
    if (strncmp(key, LAYERS, sizeof LAYERS - 1) == 0 && n > sizeof LAYERS + sizeof RATIO &&
        strcmp(key + n - (sizeof RATIO - 1), RATIO) == 0)
        return add_share(b, key + sizeof LAYERS - 1, value);
    if (strcmp(key, "chunk_end_token_id") != 0)
        return tsri_config_ignore_unknown(b->cfg, key, BLEND ": ", key, b->place);
    char where[TSRI_PLACE_BYTES], text[TSRI_PLACE_BYTES + 160];
    snprintf(text, sizeof text,
             "%s" BLEND ": %s: ignored: stored text is found without a mark; separator is a text "
             "between documents, which may be the text of this token",
             tsri_place_text(b->place, where, sizeof where), key);
    return tsri_config_note(b->cfg, key, TSR_LOG_WARN, text);
}

static int put_shares(const struct blend *b)
{
    char layers[TSRI_LIST_MAX * 8] = "", ratios[TSRI_LIST_MAX * 48] = "";
    size_t n_layers = 0, n_ratios = 0;
    for (size_t i = 0; i < b->n; i++) {
        const char *comma = i ? "," : "";
        if (strlen(b->shares[i].ratio) > 40) return refuse(b, b->shares[i].ratio, "is no ratio");
        n_layers += (size_t)snprintf(layers + n_layers, sizeof layers - n_layers, "%s%lu", comma,
                                     b->shares[i].layer);
        n_ratios += (size_t)snprintf(ratios + n_ratios, sizeof ratios - n_ratios, "%s%s", comma,
                                     b->shares[i].ratio);
    }
    if (!b->n) return 0;
    int err = tsri_config_put(b->cfg, "blend_check_layers", layers, b->place);
    return err ? err : tsri_config_put(b->cfg, "blend_recompute_ratios", ratios, b->place);
}

int tsri_ucm_put_blend(struct tsr_config *cfg, const char *lines, const struct tsri_place *place)
{
    struct blend b = {.cfg = cfg, .place = place};
    char *text = tsri_strdup(lines);
    if (!text) return TSR_ENOMEM;
    int err = tsri_ucm_blend_anywhere(cfg, place);
    for (char *at = text, *end; !err && *at; at = end) {
        end = at + strcspn(at, "\n");
        if (*end) *end++ = '\0';
        char *value = strchr(at, '=');
        if (!value) {
            err = refuse(&b, at, "is not a mapping");
            continue;
        }
        *value++ = '\0';
        err = put_line(&b, at, value);
    }
    if (!err) err = put_shares(&b);
    tsri_free(text);
    return err;
}
