/* SPDX-License-Identifier: MIT */
/* Rotary frequencies. Source: transformers 5, modeling_rope_utils.py; each part names the function it follows.
 * transformers computes in float32; here results are rounded from double. */
#include "config.h"

#include <math.h>

#include "model/model.h"

static const double PI = 3.14159265358979323846;

/* Implements _compute_dynamic_ntk_parameters: the base grows if the sequence is longer than the trained length. */
static double dynamic_theta(const rope_config *r, int64_t seq_len)
{
    double dim = r->head_dim;
    if (seq_len <= r->original_max || r->head_dim <= 2) return r->theta;
    double grown = r->factor * (double)seq_len / (double)r->original_max - (r->factor - 1);
    return r->theta * pow(grown, dim / (dim - 2));
}

/* Implements _compute_llama3_parameters: keeps short wavelengths, divides long ones, and interpolates between. */
static double llama3_freq(const rope_config *r, double f)
{
    double wavelen = 2 * PI / f, n = (double)r->original_max;
    if (wavelen < n / r->high_freq_factor) return f;
    if (wavelen > n / r->low_freq_factor) return f / r->factor;
    double smooth = (n / wavelen - r->low_freq_factor) / (r->high_freq_factor - r->low_freq_factor);
    return (1 - smooth) * f / r->factor + smooth * f;
}

/* Returns the dimension whose wavelength fits `rotations` times into the trained length. */
static double yarn_dim(const rope_config *r, double rotations)
{
    return r->head_dim * log((double)r->original_max / (rotations * 2 * PI)) / (2 * log(r->theta));
}

/* Implements _compute_yarn_parameters: frequency c is a blend of f and f / factor. */
static double yarn_freq(const rope_config *r, double f, int c)
{
    double low = yarn_dim(r, r->beta_fast), high = yarn_dim(r, r->beta_slow);
    if (r->truncate) {
        low = floor(low);
        high = ceil(high);
    }
    low = fmax(low, 0);
    high = fmin(high, r->head_dim - 1);
    if (low == high) high += 0.001;
    double ramp = fmin(fmax((c - low) / (high - low), 0), 1);
    return f / r->factor * ramp + f * (1 - ramp);
}

static double yarn_get_mscale(double scale, double mscale)
{
    return scale <= 1 ? 1 : 0.1 * mscale * log(scale) + 1;
}

static double yarn_attention_factor(const rope_config *r)
{
    if (r->attention_factor > 0) return r->attention_factor;
    if (r->mscale > 0 && r->mscale_all_dim > 0)
        return yarn_get_mscale(r->factor, r->mscale) / yarn_get_mscale(r->factor, r->mscale_all_dim);
    return yarn_get_mscale(r->factor, 1);
}

/* Implements the factor of _compute_longrope_parameters. */
static double longrope_attention_factor(const rope_config *r)
{
    if (r->attention_factor > 0) return r->attention_factor;
    return r->factor <= 1 ? 1 : sqrt(1 + log(r->factor) / log((double)r->original_max));
}

static double attention_factor(const rope_config *r)
{
    if (r->kind == ROPE_YARN) return yarn_attention_factor(r);
    return r->kind == ROPE_LONGROPE ? longrope_attention_factor(r) : 1;
}

float rope_query_scale(const rope_config *r, int64_t pos)
{
    return r->query_beta > 0 ? (float)(1 + r->query_beta * log(1 + floor((double)pos / (double)r->original_max))) : 1;
}

void rope_frequencies(const rope_config *r, int64_t seq_len, float *freq, float *mscale)
{
    double theta = r->kind == ROPE_DYNAMIC ? dynamic_theta(r, seq_len) : r->theta;
    const float *by = r->long_divisors && seq_len > r->original_max ? r->long_divisors : r->divisors;
    for (int c = 0; c < r->head_dim / 2; c++) {
        double f = pow(theta, -2.0 * c / r->head_dim);
        if (r->kind == ROPE_LINEAR) f /= r->factor;
        if (r->kind == ROPE_LLAMA3) f = llama3_freq(r, f);
        if (r->kind == ROPE_YARN) f = yarn_freq(r, f, c);
        if (r->kind == ROPE_OFF) f = 0;
        freq[c] = (float)(by ? f / (double)by[c] : f);
    }
    *mscale = (float)attention_factor(r);
}
