# SPDX-License-Identifier: MIT
engine_sources += %D%/api.h %D%/api_impl.h %D%/api_error.c %D%/api_request.c %D%/api_translate.h %D%/api_translate.c %D%/api_stream.h %D%/api_stream.c %D%/api_messages.c %D%/api_responses.c %D%/chat_in.c %D%/chat_ladder.c %D%/reply.c %D%/api_answer.c %D%/sched.h %D%/sched_impl.h %D%/sched.c %D%/gen.c \
  %D%/job.c %D%/kept.c %D%/spec.c %D%/submit.c %D%/lens.c %D%/metrics.h %D%/metrics.c \
  %D%/http.h %D%/guard.c %D%/routes.c %D%/serve.c
engine_sources += %D%/api_format.c %D%/constraint.c %D%/call_grammar.c
if HAVE_MHD
engine_sources += %D%/http.c
else
engine_sources += %D%/http_none.c
endif
