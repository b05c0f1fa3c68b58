/* What a C compiler makes of the headers: sizes, places, numbers. Compared with tests/verbs/abi.txt. */
#include <stdio.h>

#include "forebay/iov_backend.h"

#define SIZE(type) printf("%s %zu\n", #type, sizeof(type))
#define PLACE(type, field) printf("%s.%s %zu\n", #type, #field, offsetof(struct type, field))
#define NUMBER(name) printf("%s %d\n", #name, (int)name)

int main(void)
{
    NUMBER(IOV_ABI);
    NUMBER(IOV_BACKEND_ABI);
    NUMBER(IOV_STOP), NUMBER(IOV_CONTINUE), NUMBER(IOV_ROLLBACK);
    NUMBER(IOV_FREE), NUMBER(IOV_CHAIN);
    NUMBER(IOV_WAITING), NUMBER(IOV_RUNNING), NUMBER(IOV_DONE);
    NUMBER(IOV_FAILED), NUMBER(IOV_SKIPPED), NUMBER(IOV_UNDONE);
    NUMBER(IOV_READ), NUMBER(IOV_READ_WRITE);
    SIZE(struct iov_uuid);
    SIZE(struct iov_token);
    SIZE(struct iov_pair);
    PLACE(iov_pair, key), PLACE(iov_pair, value);
    SIZE(struct iov_options);
    PLACE(iov_options, size), PLACE(iov_options, backend), PLACE(iov_options, controls);
    PLACE(iov_options, meta), PLACE(iov_options, meta_count);
    SIZE(struct iov_record);
    PLACE(iov_record, name), PLACE(iov_record, backend), PLACE(iov_record, controls);
    PLACE(iov_record, meta), PLACE(iov_record, meta_count), PLACE(iov_record, uuid);
    SIZE(struct iov_address);
    PLACE(iov_address, workspace), PLACE(iov_address, name), PLACE(iov_address, uuid);
    SIZE(struct iov_backend_table);
    PLACE(iov_backend_table, abi), PLACE(iov_backend_table, outlives_process);
    PLACE(iov_backend_table, size), PLACE(iov_backend_table, kind), PLACE(iov_backend_table, init);
    PLACE(iov_backend_table, shutdown), PLACE(iov_backend_table, supports);
    PLACE(iov_backend_table, create), PLACE(iov_backend_table, open), PLACE(iov_backend_table, remove);
    PLACE(iov_backend_table, read), PLACE(iov_backend_table, write), PLACE(iov_backend_table, append);
    PLACE(iov_backend_table, truncate), PLACE(iov_backend_table, length), PLACE(iov_backend_table, sync);
    PLACE(iov_backend_table, close), PLACE(iov_backend_table, error);
    return 0;
}
