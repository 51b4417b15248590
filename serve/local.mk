# SPDX-License-Identifier: MIT
engine_sources += %D%/api.h %D%/api_request.c %D%/api_answer.c %D%/sched.h %D%/sched_impl.h %D%/sched.c %D%/choice.c \
  %D%/job.c %D%/spec.c %D%/submit.c %D%/lens.c %D%/metrics.h %D%/metrics.c \
  %D%/http.h %D%/guard.c %D%/routes.c %D%/serve.c
if HAVE_MHD
engine_sources += %D%/http.c
else
engine_sources += %D%/http_none.c
endif
