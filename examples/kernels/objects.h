/* objects.h: between kernel.c and objects.c. */
#ifndef OBJECTS_H
#define OBJECTS_H

#include "kernel.h"

/* Opens the session and the workspace, or the directory, of this rank. `backend`: KIND:CONFIGURATION, or NULL. */
void objects_begin(struct job *job, const char *name, const char *backend);
/* Which of these controls can be kept goes to `kept`; which not, into the line. `room`: bytes of both. */
void objects_agree(struct job *job, const char *controls, char *kept, char *line, size_t room);
void objects_end(struct job *job);

#endif
