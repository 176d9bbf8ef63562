/* rope.c - rotary positions. A model turns each pair of K's elements by position * frequency; the
 * variants differ only in the frequencies and in one scale of cos and sin. K that stands at one
 * position is brought to another by turning it by the difference, once, as long as both positions
 * use the same frequencies: that is a frequency set. The scale (YaRN's and LongRoPE's attention
 * factor) is in K already, so the table of a shift never has it.
 *
 * Frequencies, angles, cos and sin are computed in double; a table is rounded once, to float. The
 * formulas and the names of the parameters are those of transformers' modeling_rope_utils.py
 * (Hugging Face, Apache-2.0), which computes them in float; tests/golden/rope.txt holds its
 * results. */
#include "device/device.h"

#include <math.h>

#define PI 3.14159265358979323846

static int check_yarn(const struct tsr_rope *r)
{
    if (r->beta_fast < 0 || r->beta_slow < 0 || !isfinite(r->beta_fast) || !isfinite(r->beta_slow))
        return tsri_fail(TSR_EINVAL, "rope: yarn betas %g and %g", r->beta_fast, r->beta_slow);
    if (!isfinite(r->mscale) || !isfinite(r->mscale_all_dim) || r->mscale < 0 ||
        r->mscale_all_dim < 0)
        return tsri_fail(TSR_EINVAL, "rope: yarn mscale %g and %g", r->mscale, r->mscale_all_dim);
    return 0;
}

static int check_longrope(const struct tsr_rope *r)
{
    if (r->n_factors != r->dims / 2 || !r->short_factors || !r->long_factors)
        return tsri_fail(TSR_EINVAL, "rope: longrope with %u factors for %u elements", r->n_factors,
                         r->dims);
    for (uint32_t i = 0; i < r->n_factors; i++)
        if (!(r->short_factors[i] > 0) || !(r->long_factors[i] > 0) ||
            !isfinite(r->short_factors[i]) || !isfinite(r->long_factors[i]))
            return tsri_fail(TSR_EINVAL, "rope: longrope factor %u is not positive", i);
    return 0;
}

int tsri_rope_check(const struct tsr_rope *r)
{
    if (!r || r->size < sizeof *r) return tsri_fail(TSR_EINVAL, "rope: size is not set");
    if (r->pairing != TSR_ROPE_NEOX && r->pairing != TSR_ROPE_GPTJ)
        return tsri_fail(TSR_EINVAL, "rope: pairing %u", r->pairing);
    if (r->dims < 2 || r->dims % 2 || r->dims > 2 * TSRI_ROPE_PAIRS_MAX)
        return tsri_fail(TSR_EINVAL, "rope: %u elements", r->dims);
    if (!(r->theta > 1) || !isfinite(r->theta))
        return tsri_fail(TSR_EINVAL, "rope: theta %g", r->theta);
    if (r->scaling > TSR_ROPE_LONGROPE)
        return tsri_fail(TSR_EINVAL, "rope: scaling %u", r->scaling);
    if (r->scaling == TSR_ROPE_PLAIN) return 0;
    if (!(r->factor > 0) || !isfinite(r->factor))
        return tsri_fail(TSR_EINVAL, "rope: factor %g", r->factor);
    if (r->scaling == TSR_ROPE_LINEAR) return 0;
    if (r->trained < 2) return tsri_fail(TSR_EINVAL, "rope: trained for %u positions", r->trained);
    if (r->scaling == TSR_ROPE_DYNAMIC && (r->factor < 1 || r->dims == 2))
        return tsri_fail(TSR_EINVAL, "rope: dynamic with factor %g and %u elements", r->factor,
                         r->dims);
    if (r->scaling == TSR_ROPE_LLAMA3 &&
        (!(r->low_freq_factor > 0) || !(r->high_freq_factor > r->low_freq_factor) ||
         !isfinite(r->high_freq_factor)))
        return tsri_fail(TSR_EINVAL, "rope: llama3 frequency factors %g and %g", r->low_freq_factor,
                         r->high_freq_factor);
    if (!isfinite(r->attention_factor) || r->attention_factor < 0)
        return tsri_fail(TSR_EINVAL, "rope: attention factor %g", r->attention_factor);
    if (r->scaling == TSR_ROPE_YARN) return check_yarn(r);
    return r->scaling == TSR_ROPE_LONGROPE ? check_longrope(r) : 0;
}

uint32_t tsri_rope_set_id(const struct tsr_rope *r, uint64_t n_tokens)
{
    if (n_tokens <= r->trained) return 0;
    if (r->scaling == TSR_ROPE_LONGROPE) return 1;
    if (r->scaling != TSR_ROPE_DYNAMIC) return 0;
    return n_tokens > UINT32_MAX ? UINT32_MAX : (uint32_t)n_tokens;
}

/* ---- frequencies ---- */

static void plain(struct tsri_rope_set *set, const struct tsr_rope *r, double theta)
{
    for (uint32_t i = 0; i < set->n_pairs; i++)
        set->freq[i] = pow(theta, -2.0 * i / r->dims);
}

static void dynamic(struct tsri_rope_set *set, const struct tsr_rope *r)
{
    double n_tokens = set->id > r->trained ? set->id : r->trained;
    double stretch = r->factor * n_tokens / r->trained - (r->factor - 1);
    plain(set, r, r->theta * pow(stretch, r->dims / (r->dims - 2.0)));
}

static double yarn_mscale(double factor, double mscale)
{
    return factor <= 1 ? 1 : 0.1 * mscale * log(factor) + 1;
}

/* The pair that turns `rotations` times within the trained positions. */
static double yarn_pair(const struct tsr_rope *r, double rotations)
{
    return r->dims * log(r->trained / (rotations * 2 * PI)) / (2 * log(r->theta));
}

/* Fast pairs keep their frequency, slow ones are stretched, with a ramp between. */
static void yarn(struct tsri_rope_set *set, const struct tsr_rope *r)
{
    double low = yarn_pair(r, r->beta_fast > 0 ? r->beta_fast : 32);
    double high = yarn_pair(r, r->beta_slow > 0 ? r->beta_slow : 1);
    if (!r->yarn_exact) {
        low = floor(low);
        high = ceil(high);
    }
    low = fmax(low, 0);
    high = fmin(high, r->dims - 1.0);
    if (low == high) high += 0.001;
    plain(set, r, r->theta);
    for (uint32_t i = 0; i < set->n_pairs; i++) {
        double slow = fmin(fmax((i - low) / (high - low), 0), 1);
        set->freq[i] = set->freq[i] / r->factor * slow + set->freq[i] * (1 - slow);
    }
    if (r->attention_factor > 0)
        set->attention_factor = r->attention_factor;
    else if (r->mscale > 0 && r->mscale_all_dim > 0)
        set->attention_factor =
            yarn_mscale(r->factor, r->mscale) / yarn_mscale(r->factor, r->mscale_all_dim);
    else
        set->attention_factor = yarn_mscale(r->factor, 1);
}

static void llama3(struct tsri_rope_set *set, const struct tsr_rope *r)
{
    plain(set, r, r->theta);
    for (uint32_t i = 0; i < set->n_pairs; i++) {
        double turns = r->trained * set->freq[i] / (2 * PI); /* within the trained positions */
        double keep = (turns - r->low_freq_factor) / (r->high_freq_factor - r->low_freq_factor);
        keep = fmin(fmax(keep, 0), 1);
        set->freq[i] = (1 - keep) * set->freq[i] / r->factor + keep * set->freq[i];
    }
}

static void longrope(struct tsri_rope_set *set, const struct tsr_rope *r)
{
    const double *factors = set->id ? r->long_factors : r->short_factors;
    plain(set, r, r->theta);
    for (uint32_t i = 0; i < set->n_pairs; i++)
        set->freq[i] /= factors[i];
    if (r->attention_factor > 0)
        set->attention_factor = r->attention_factor;
    else if (r->factor > 1)
        set->attention_factor = sqrt(1 + log(r->factor) / log(r->trained));
}

void tsri_rope_set_init(struct tsri_rope_set *set, const struct tsr_rope *r, uint32_t id)
{
    set->id = id;
    set->n_pairs = r->dims / 2;
    set->attention_factor = 1;
    switch (r->scaling) {
    case TSR_ROPE_LINEAR:
        plain(set, r, r->theta);
        for (uint32_t i = 0; i < set->n_pairs; i++)
            set->freq[i] /= r->factor;
        break;
    case TSR_ROPE_DYNAMIC:
        dynamic(set, r);
        break;
    case TSR_ROPE_YARN:
        yarn(set, r);
        break;
    case TSR_ROPE_LLAMA3:
        llama3(set, r);
        break;
    case TSR_ROPE_LONGROPE:
        longrope(set, r);
        break;
    default:
        plain(set, r, r->theta);
    }
}

void tsri_rope_table(const struct tsri_rope_set *set, int64_t delta, float *table)
{
    for (uint32_t i = 0; i < set->n_pairs; i++) {
        double angle = (double)delta * set->freq[i];
        table[i] = (float)cos(angle);
        table[set->n_pairs + i] = (float)sin(angle);
    }
}
