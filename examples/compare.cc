// SPDX-License-Identifier: MIT
// One prompt under several strategies, decoded in one batch: compare DIR TEXT STRATEGY...
//     c++ -std=c++17 compare.cc $(pkg-config --cflags --libs kvasir) -o compare
#include <kvasir.h>

#include <cstring>
#include <iostream>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace
{

constexpr int kNew = 24;

struct Free {
    void operator()(kvasir_model *m) const
    {
        kvasir_model_free(m);
    }
    void operator()(kvasir_session *s) const
    {
        kvasir_session_free(s);
    }
};
using Model = std::unique_ptr<kvasir_model, Free>;
using Session = std::unique_ptr<kvasir_session, Free>;

// Calls a function of the library; throws its message if it fails.
template <class F, class... Args> void must(F f, Args... args)
{
    char message[256];
    if (f(args..., message, sizeof message) != KVASIR_OK) throw std::runtime_error(message);
}

std::vector<int32_t> tokens_of(kvasir_model *model, const std::string &text)
{
    size_t n = 0;
    must(kvasir_tokenize, model, text.data(), text.size(), KVASIR_BOS, nullptr, size_t{0}, &n);
    std::vector<int32_t> ids(n);
    must(kvasir_tokenize, model, text.data(), text.size(), KVASIR_BOS, ids.data(), ids.size(), &n);
    return ids;
}

std::string text_of(kvasir_model *model, const std::vector<int32_t> &ids)
{
    size_t n = 0;
    must(kvasir_detokenize, model, ids.data(), ids.size(), 0, nullptr, size_t{0}, &n);
    std::string text(n + 1, '\0');
    must(kvasir_detokenize, model, ids.data(), ids.size(), 0, &text[0], text.size(), &n);
    text.resize(n);
    return text;
}

void compare(const char *dir, const std::string &text, const std::vector<const char *> &strategies)
{
    kvasir_model *loaded = nullptr;
    kvasir_options options{};
    options.struct_size = sizeof options;
    options.batch = static_cast<int32_t>(strategies.size());
    must(kvasir_model_load, &loaded, dir, &options);
    const Model model(loaded);
    const std::vector<int32_t> prompt = tokens_of(model.get(), text);
    std::vector<Session> owned;
    std::vector<kvasir_session *> sessions;
    for (const char *strategy : strategies) {
        kvasir_session *s = nullptr;
        must(kvasir_session_create, &s, model.get(), strategy, "f16", int64_t(prompt.size()) + kNew);
        owned.emplace_back(s);
        sessions.push_back(s);
        must(kvasir_session_feed, s, prompt.data(), prompt.size(), int32_t{KVASIR_PROMPT},
             static_cast<kvasir_score *>(nullptr));
    }
    std::vector<std::vector<int32_t>> said(sessions.size());
    std::vector<int32_t> next(sessions.size());
    for (int i = 0; i < kNew; i++) {
        for (size_t k = 0; k < sessions.size(); k++) {
            must(kvasir_session_sample, sessions[k], static_cast<const kvasir_sampling *>(nullptr), &next[k]);
            said[k].push_back(next[k]);
        }
        must(kvasir_decode, sessions.data(), sessions.size(), next.data());
    }
    for (size_t k = 0; k < sessions.size(); k++)
        std::cout << strategies[k] << ": " << text_of(model.get(), said[k]) << '\n';
}

} // namespace

int main(int argc, char **argv)
{
    if (argc < 4) {
        std::cerr << "usage: compare DIR TEXT STRATEGY...\n";
        return 2;
    }
    try {
        compare(argv[1], argv[2], std::vector<const char *>(argv + 3, argv + argc));
    } catch (const std::exception &e) {
        std::cerr << "compare: " << e.what() << '\n';
        return 1;
    }
    return 0;
}
