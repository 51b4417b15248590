/* SPDX-License-Identifier: MIT */
/* Nearest names. */
#include "config.h"

#include "kernels/base/nearest.h"
#include "tests/tap.h"

static const char *near_to(const char *text, const char *words)
{
    static nearest n;
    nearest_start(&n, text);
    nearest_try_words(&n, words);
    return n.name;
}

int main(void)
{
    static const struct {
        const char *text, *words, *want;
    } t[] = {
        {"qest", "full quest fier", "quest"},
        {"quests", "full quest fier", "quest"},
        {"pgae", "page score", "page"},              /* neighbours swapped are one change */
        {"stream", "streaming snapkv", "streaming"}, /* 3 of 9 letters */
        {"strem", "streaming snapkv", ""},           /* 4 of 9 */
        {"best", "quest", ""},                       /* 2 of 5 */
        {"kivi3", "kivi2 kivi4", "kivi2"},           /* equally near: the first */
        {"x", "g r", ""},                            /* one letter tells nothing */
        {"gr", "g r", "g"},
        {"", "g r", ""},
        {"quest", "", ""},
        {"abcdefghijklmnopqrstuvwxyzabcde", "abcdefghijklmnopqrstuvwxyzabcd", "abcdefghijklmnopqrstuvwxyzabcd"},
        {"abcdefghijklmnopqrstuvwxyzabcdefabcdefghijklmnopqrstuvwxyzabcdef",
         "abcdefghijklmnopqrstuvwxyzabcdefabcdefghijklmnopqrstuvwxyzabcde", ""}, /* too long */
    };
    for (size_t i = 0; i < sizeof t / sizeof *t; i++)
        is_str(near_to(t[i].text, t[i].words), t[i].want, "'%s' of '%s'", t[i].text, t[i].words);
    nearest n;
    nearest_start(&n, "qest");
    is_str(nearest_hint(&n), "", "nothing known, no hint");
    nearest_try(&n, "quest", 5);
    is_str(nearest_hint(&n), " (did you mean 'quest'?)", "a hint");
    return tap_done();
}
