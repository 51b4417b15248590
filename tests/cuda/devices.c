/* SPDX-License-Identifier: MIT */
/* The tests that run on a device, in one program of small size: devices NAME, or a link with that name. Without a name
 * it lists them. DEVICE_TESTS: X(NAME) for each, from tests/list.sh. */
#include <stdio.h>
#include <string.h>

#define X(name) int name##_main(void);
DEVICE_TESTS
#undef X

static const struct {
    const char *name;
    int (*main)(void);
} tests[] = {
#define X(name) {#name, name##_main},
    DEVICE_TESTS
#undef X
};

int main(int argc, char **argv)
{
    const char *own = strrchr(argv[0], '/') ? strrchr(argv[0], '/') + 1 : argv[0];
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++)
        if (strcmp(own, tests[i].name) == 0 || (argc > 1 && strcmp(argv[1], tests[i].name) == 0))
            return tests[i].main();
    if (argc > 1) {
        fprintf(stderr, "devices: no test '%s'\n", argv[1]);
        return 2;
    }
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++) puts(tests[i].name);
    return 0;
}
