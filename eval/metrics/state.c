/* SPDX-License-Identifier: MIT */
/* State that scoring keeps between calls. */
#include "config.h"

#include "eval/metrics/impl.h"
#include "kernels/base/file.h"
#include "kernels/base/mem.h"

struct metrics {
    char *jieba_dir;
    segmenter *words;
    bool undecided;
};

bool metrics_undecided(const metrics *m)
{
    return m->undecided;
}

void metrics_set_undecided(metrics *m, bool undecided)
{
    m->undecided = undecided;
}

status metrics_create(metrics **out, const char *jieba_dir, err *e)
{
    metrics *m;
    *out = NULL;
    TRY(MEM_NEW(&m, 1, e));
    if (!(m->jieba_dir = mem_strdup(jieba_dir))) {
        mem_free(m);
        return err_set(e, ST_NOMEM, "out of memory");
    }
    *out = m;
    return ST_OK;
}

status metrics_open(metrics **out, const char *data_dir, err *e)
{
    char *jieba = path_join(data_dir, "jieba");
    *out = NULL;
    status st = jieba ? metrics_create(out, jieba, e) : err_set(e, ST_NOMEM, "out of memory");
    mem_free(jieba);
    return st;
}

void metrics_destroy(metrics *m)
{
    if (!m) return;
    segmenter_destroy(m->words);
    mem_free(m->jieba_dir);
    mem_free(m);
}

status metrics_segmenter(metrics *m, const segmenter **out, err *e)
{
    if (!m->words) TRY(segmenter_create(&m->words, m->jieba_dir, e));
    *out = m->words;
    return ST_OK;
}
