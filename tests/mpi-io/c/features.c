/* MPI-IO, a case for each feature. Usage: features DIRECTORY CASE...; four ranks. Each case leaves a file whose bytes
 * are known, and every rank reads it back by MPI-IO and by POSIX calls. */
#include "check.h"

#define W MPI_COMM_WORLD
static MPI_Status status;

static MPI_File opened(const char *name, int mode, MPI_Info info) {
  MPI_File f;
  OK(MPI_File_open(W, name, mode, info, &f));
  return f;
}
static MPI_File made(const char *name) { return opened(name, MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL); }

/* Before others may look: what the standard asks for where there is no atomic mode. */
static void settle(MPI_File f) {
  OK(MPI_File_sync(f));
  MPI_Barrier(W);
  OK(MPI_File_sync(f));
}

static void counted(int line, int wanted) {
  int n;
  MPI_Get_count(&status, MPI_BYTE, &n);
  if (n != wanted) fail(line, "count", "short");
}
#define COUNT(n) counted(__LINE__, n)

/* Blocks of all ranks in turn: at explicit offsets, then through the individual file pointer. */
static void independent(void) {
  enum { BLOCK = 10007, BLOCKS = 40 };
  unsigned char *all = room(BLOCK * BLOCKS), *got = room(BLOCK);
  fill(all, BLOCK * BLOCKS, 1);
  MPI_File f = made("independent");
  for (int n = rank; n < BLOCKS; n += ranks) {
    OK(MPI_File_write_at(f, (MPI_Offset)n * BLOCK, all + n * BLOCK, BLOCK, MPI_BYTE, &status));
    COUNT(BLOCK);
  }
  settle(f);
  for (int n = 0; n < BLOCKS; n++) {
    OK(MPI_File_read_at(f, (MPI_Offset)n * BLOCK, got, BLOCK, MPI_BYTE, &status));
    COUNT(BLOCK);
    SAME(got, all + n * BLOCK, BLOCK);
  }
  WHOLE("independent", all, BLOCK * BLOCKS);
  fill(all, BLOCK * BLOCKS, 2);
  for (int n = rank; n < BLOCKS; n += ranks) {
    MPI_Offset at;
    OK(MPI_File_seek(f, (MPI_Offset)n * BLOCK, MPI_SEEK_SET));
    OK(MPI_File_write(f, all + n * BLOCK, BLOCK, MPI_BYTE, &status));
    OK(MPI_File_get_position(f, &at));
    CHECK(at == (MPI_Offset)(n + 1) * BLOCK);
  }
  settle(f);
  OK(MPI_File_seek(f, -(MPI_Offset)BLOCK * (rank + 1), MPI_SEEK_END));
  OK(MPI_File_read(f, got, BLOCK, MPI_BYTE, &status));
  SAME(got, all + (BLOCKS - rank - 1) * BLOCK, BLOCK);
  /* Behind the end there is nothing. */
  OK(MPI_File_read_at(f, (MPI_Offset)BLOCKS * BLOCK, got, BLOCK, MPI_BYTE, &status));
  COUNT(0);
  OK(MPI_File_close(&f));
  WHOLE("independent", all, BLOCK * BLOCKS);
  free(all); free(got);
}

/* Of each rank another amount, of one nothing; then by halves (begin, end), read by all in another order. */
static void collective(void) {
  size_t sizes[4] = {300001, 0, 1500000, 70000}, at[5] = {0};
  for (int r = 0; r < 4; r++) at[r + 1] = at[r] + sizes[r];
  unsigned char *all = room(at[4]), *got = room(at[4]);
  fill(all, at[4], 3);
  MPI_File f = made("collective");
  OK(MPI_File_write_at_all(f, at[rank], all + at[rank], sizes[rank], MPI_BYTE, &status));
  COUNT(sizes[rank]);
  settle(f);
  int other = (rank + 1) % ranks;
  OK(MPI_File_read_at_all(f, at[other], got, sizes[other], MPI_BYTE, &status));
  COUNT(sizes[other]);
  SAME(got, all + at[other], sizes[other]);
  WHOLE("collective", all, at[4]);
  fill(all, at[4], 4);
  OK(MPI_File_seek(f, at[rank], MPI_SEEK_SET));
  OK(MPI_File_write_all_begin(f, all + at[rank], sizes[rank], MPI_BYTE));
  OK(MPI_File_write_all_end(f, all + at[rank], &status));
  settle(f);
  OK(MPI_File_read_at_all_begin(f, 0, got, at[4], MPI_BYTE));
  OK(MPI_File_read_at_all_end(f, got, &status));
  SAME(got, all, at[4]);
  OK(MPI_File_close(&f));
  WHOLE("collective", all, at[4]);
  free(all); free(got);
}

/* All ranks write one region at the same time: afterwards, and to who reads meanwhile, it is of one of them. */
static void atomic_turns(MPI_File f, int size, int turns) {
  unsigned char *mine = room(size), *got = room(size);
  for (int turn = 0; turn < turns; turn++) {
    memset(mine, turn * 10 + rank + 1, size);
    int reader = turn % ranks;
    MPI_Barrier(W);
    for (int n = 0; n < 4; n++) {
      if (rank != reader) {
        OK(MPI_File_write_at(f, 0, mine, size, MPI_BYTE, &status));
        continue;
      }
      OK(MPI_File_read_at(f, 0, got, size, MPI_BYTE, &status));
      int n_got;
      MPI_Get_count(&status, MPI_BYTE, &n_got);
      CHECK(n_got == size || (turn == 0 && n_got == 0));
      memset(mine, got[0], n_got);
      SAME(got, mine, n_got);
    }
    MPI_Barrier(W);
    OK(MPI_File_read_at(f, 0, got, size, MPI_BYTE, &status));
    COUNT(size);
    CHECK(got[0] > turn * 10 && got[0] <= turn * 10 + ranks && got[0] != turn * 10 + reader + 1);
    memset(mine, got[0], size);
    SAME(got, mine, size);
  }
  free(mine); free(got);
}

static void atomic(void) {
  MPI_File f = made("atomic");
  int flag = 0;
  OK(MPI_File_set_atomicity(f, 1));
  OK(MPI_File_get_atomicity(f, &flag));
  CHECK(flag);
  atomic_turns(f, 2500000, 8);
  OK(MPI_File_close(&f));
}

/* The same where the region is in pieces. */
static void atomic_strided(void) {
  MPI_File f = made("atomic-strided");
  MPI_Datatype t;
  OK(MPI_File_set_atomicity(f, 1));
  MPI_Type_vector(5000, 100, 250, MPI_BYTE, &t);
  MPI_Type_commit(&t);
  OK(MPI_File_set_view(f, 13, MPI_BYTE, t, "native", MPI_INFO_NULL));
  atomic_turns(f, 5000 * 100, 6);
  OK(MPI_File_close(&f));
  MPI_Type_free(&t);
}

/* Independent writes of interleaved pieces: with data sieving each reads a piece of the file, changes its bytes in it
 * and writes it back, under a lock, or what others wrote meanwhile is lost. */
static void sieving(void) {
  enum { PIECE = 24, PIECES = 3000, GAP = 8 };
  size_t stride = 4 * PIECE + GAP, size = stride * PIECES;
  unsigned char *all = room(size), *mine = room(PIECE * PIECES), *got = room(PIECE * PIECES);
  MPI_Info info;
  MPI_Info_create(&info);
  MPI_Info_set(info, "romio_ds_write", "enable");
  MPI_Info_set(info, "romio_ds_read", "enable");
  MPI_Info_set(info, "romio_cb_write", "disable");
  MPI_Info_set(info, "ind_wr_buffer_size", "200000");
  MPI_Info_set(info, "ind_rd_buffer_size", "30000");
  MPI_File f = opened("sieving", MPI_MODE_CREATE | MPI_MODE_RDWR, info);
  fill(all, size, 5);
  if (rank == 0) OK(MPI_File_write_at(f, 0, all, size, MPI_BYTE, &status));
  settle(f);
  MPI_Datatype t;
  MPI_Type_vector(PIECES, PIECE, stride, MPI_BYTE, &t);
  MPI_Type_commit(&t);
  OK(MPI_File_set_view(f, rank * PIECE, MPI_BYTE, t, "native", info));
  for (int turn = 0; turn < 4; turn++) {
    for (int r = 0; r < ranks; r++) {
      fill(got, PIECE * PIECES, 100 + turn * 10 + r);
      if (r == rank) memcpy(mine, got, PIECE * PIECES);
      for (int n = 0; n < PIECES; n++) memcpy(all + n * stride + r * PIECE, got + n * PIECE, PIECE);
    }
    MPI_Barrier(W);
    OK(MPI_File_write_at(f, 0, mine, PIECE * PIECES, MPI_BYTE, &status));
    COUNT(PIECE * PIECES);
    settle(f);
    memset(got, 0, PIECE * PIECES);
    OK(MPI_File_read_at(f, 0, got, PIECE * PIECES, MPI_BYTE, &status));
    SAME(got, mine, PIECE * PIECES);
    WHOLE("sieving", all, size);
  }
  OK(MPI_File_close(&f));
  MPI_Type_free(&t);
  MPI_Info_free(&info);
  free(all); free(mine); free(got);
}

/* One pointer for all: every record is written once, whole, and read once; in order where that is asked for. */
static void shared(void) {
  enum { RECORD = 600, RECORDS = 50 };
  MPI_File f = made("shared");
  unsigned char *record = room(RECORD), *wanted = room(RECORD);
  MPI_Offset at;
  for (int n = 0; n < RECORDS; n++) {
    fill(record, RECORD, rank * 1000 + n);
    record[0] = rank; record[1] = n;
    if (n % 2) {
      OK(MPI_File_write_shared(f, record, RECORD, MPI_BYTE, &status));
    } else {
      MPI_Request request;
      OK(MPI_File_iwrite_shared(f, record, RECORD, MPI_BYTE, &request));
      OK(MPI_Wait(&request, &status));
    }
  }
  settle(f);
  OK(MPI_File_get_position_shared(f, &at));
  CHECK(at == (MPI_Offset)RECORD * RECORDS * ranks);
  MPI_Barrier(W);
  OK(MPI_File_seek_shared(f, 0, MPI_SEEK_SET));
  int seen[4 * RECORDS] = {0}, total[4 * RECORDS];
  for (int n = 0; n < RECORDS; n++) {
    OK(MPI_File_read_shared(f, record, RECORD, MPI_BYTE, &status));
    COUNT(RECORD);
    CHECK(record[0] < ranks && record[1] < RECORDS);
    fill(wanted, RECORD, record[0] * 1000 + record[1]);
    SAME(record + 2, wanted + 2, RECORD - 2);
    seen[record[0] * RECORDS + record[1]]++;
  }
  MPI_Allreduce(seen, total, 4 * RECORDS, MPI_INT, MPI_SUM, W);
  for (int n = 0; n < 4 * RECORDS; n++) CHECK(total[n] == 1);
  OK(MPI_File_close(&f));

  /* In the order of the ranks; of each another length. */
  f = made("ordered");
  unsigned char *all = room(4 * RECORD * 10);
  size_t end = 0;
  for (int turn = 0; turn < 10; turn++) {
    for (int r = 0; r < ranks; r++) {
      size_t size = 100 + 100 * r + turn;
      fill(all + end, size, turn * 10 + r);
      end += size;
    }
    size_t size = 100 + 100 * rank + turn;
    fill(record, size, turn * 10 + rank);
    OK(MPI_File_write_ordered(f, record, size, MPI_BYTE, &status));
    COUNT(size);
  }
  settle(f);
  OK(MPI_File_seek_shared(f, 0, MPI_SEEK_SET));
  for (int turn = 0; turn < 10; turn++) {
    size_t size = 100 + 100 * rank + turn;
    fill(wanted, size, turn * 10 + rank);
    OK(MPI_File_read_ordered(f, record, size, MPI_BYTE, &status));
    SAME(record, wanted, size);
  }
  OK(MPI_File_close(&f));
  WHOLE("ordered", all, end);
  free(all); free(record); free(wanted);
}

/* A view, written and read collectively and alone, and where its bytes lie. What lies between is left as it was. */
static void view(const char *name, MPI_Datatype t, MPI_Offset from, size_t ints, const int *where, size_t size) {
  int *mine = room(ints * sizeof(int)), *got = room(ints * sizeof(int)), *all = room(size), *change = room(size);
  MPI_File f = made(name);
  fill((unsigned char *)all, size, 6);
  if (rank == 0) OK(MPI_File_write_at(f, 0, all, size, MPI_BYTE, &status));
  settle(f);
  for (int turn = 0; turn < 2; turn++) {
    memset(change, 0, size);
    for (size_t n = 0; n < ints; n++) {
      mine[n] = (rank + 1) * 1000000 + turn * 500000 + n;
      change[where[n]] = mine[n];
    }
    OK(MPI_Allreduce(MPI_IN_PLACE, change, size / sizeof(int), MPI_INT, MPI_SUM, W));
    for (size_t n = 0; n < size / sizeof(int); n++)
      if (change[n]) all[n] = change[n];
    OK(MPI_File_set_view(f, from, MPI_INT, t, "native", MPI_INFO_NULL));
    if (turn) OK(MPI_File_write_at(f, 0, mine, ints, MPI_INT, &status));
    else OK(MPI_File_write_all(f, mine, ints, MPI_INT, &status));
    COUNT(ints * sizeof(int));
    settle(f);
    if (turn) OK(MPI_File_read_at_all(f, 0, got, ints, MPI_INT, &status));
    else OK(MPI_File_read_at(f, 0, got, ints, MPI_INT, &status));
    SAME(got, mine, ints * sizeof(int));
    for (size_t n = 0; n < ints; n += ints / 7 + 1) {
      MPI_Offset at;
      OK(MPI_File_get_byte_offset(f, n, &at));
      CHECK(at == (MPI_Offset)(where[n] * sizeof(int)));
    }
    WHOLE(name, all, size);
  }
  OK(MPI_File_close(&f));
  free(mine); free(got); free(all); free(change);
}

static void views(void) {
  /* Strided, from an offset. */
  enum { N = 2000 };
  int *where = room(sizeof(int) * 200000);
  MPI_Datatype t, u, v;
  for (int n = 0; n < N; n++) where[n] = 25 + rank * 3 + n / 3 * 12 + n % 3;
  where[N] = 0;
  MPI_Type_vector(1, 3, 3, MPI_INT, &u);
  MPI_Type_create_resized(u, 0, 12 * sizeof(int), &t);
  MPI_Type_commit(&t);
  int last = 25 + 3 * 3 + (N - 1) / 3 * 12 + (N - 1) % 3;
  view("strided", t, (25 + rank * 3) * sizeof(int), N, where, (last + 1) * sizeof(int));
  MPI_Type_free(&t); MPI_Type_free(&u);

  /* Nested: an indexed type inside a vector inside a structure. Rank r has the ints r*2 and r*2+1 of every second group
   * of eight, and number r of a header of four. */
  int lengths[2] = {1, 1}, places[2] = {rank * 2, rank * 2 + 1};
  MPI_Type_indexed(2, lengths, places, MPI_INT, &u);
  MPI_Type_create_hvector(300, 1, 16 * sizeof(int), u, &v);
  int blocks[2] = {1, 1};
  MPI_Aint at[2] = {rank * sizeof(int), 4 * sizeof(int)};
  MPI_Datatype of[2] = {MPI_INT, v};
  MPI_Type_create_struct(2, blocks, at, of, &t);
  MPI_Type_commit(&t);
  where[0] = rank;
  for (int n = 0; n < 600; n++) where[1 + n] = 4 + n / 2 * 16 + rank * 2 + n % 2;
  view("nested", t, 0, 601, where, (4 + 299 * 16 + 8) * sizeof(int));
  MPI_Type_free(&t); MPI_Type_free(&u); MPI_Type_free(&v);

  /* A quarter of a plane as a subarray. */
  int sizes[2] = {120, 200}, parts[2] = {60, 100}, starts[2] = {rank / 2 * 60, rank % 2 * 100};
  MPI_Type_create_subarray(2, sizes, parts, starts, MPI_ORDER_C, MPI_INT, &t);
  MPI_Type_commit(&t);
  for (int n = 0; n < 6000; n++) where[n] = (starts[0] + n / 100) * 200 + starts[1] + n % 100;
  view("subarray", t, 0, 6000, where, 120 * 200 * sizeof(int));
  MPI_Type_free(&t);

  /* Dealt out in blocks, 7 times 5, over two by two ranks. */
  int kinds[2] = {MPI_DISTRIBUTE_CYCLIC, MPI_DISTRIBUTE_CYCLIC}, deal[2] = {7, 5}, grid[2] = {2, 2};
  MPI_Type_create_darray(4, rank, 2, sizes, kinds, deal, grid, MPI_ORDER_C, MPI_INT, &t);
  MPI_Type_commit(&t);
  int n = 0;
  for (int y = 0; y < 120; y++)
    for (int x = 0; x < 200; x++)
      if (y / 7 % 2 == rank / 2 && x / 5 % 2 == rank % 2) where[n++] = y * 200 + x;
  view("dealt", t, 0, n, where, 120 * 200 * sizeof(int));
  MPI_Type_free(&t);
  free(where);
}

static long size_of(const char *name) {
  struct stat st;
  CHECK(!stat(name, &st));
  return st.st_size;
}

static void sizes(void) {
  MPI_Offset size;
  unsigned char *all = room(3000000);
  MPI_File f = made("sizes");
  OK(MPI_File_get_size(f, &size));
  CHECK(size == 0);
  OK(MPI_File_preallocate(f, 1048579));
  OK(MPI_File_get_size(f, &size));
  CHECK(size == 1048579);
  MPI_Barrier(W);
  CHECK(size_of("sizes") == 1048579);
  fill(all, 1048579, 7);
  OK(MPI_File_write_at_all(f, rank * 262144, all + rank * 262144, rank < 3 ? 262144 : 262147, MPI_BYTE, &status));
  settle(f);
  WHOLE("sizes", all, 1048579);
  /* Preallocating what is there changes nothing. */
  OK(MPI_File_preallocate(f, 1000));
  WHOLE("sizes", all, 1048579);
  OK(MPI_File_set_size(f, 500001));
  OK(MPI_File_get_size(f, &size));
  CHECK(size == 500001);
  WHOLE("sizes", all, 500001);
  OK(MPI_File_set_size(f, 3000000));
  memset(all + 500001, 0, 3000000 - 500001);
  WHOLE("sizes", all, 3000000);
  OK(MPI_File_set_size(f, 0));
  OK(MPI_File_get_size(f, &size));
  CHECK(size == 0);
  /* Far out: what lies between is a hole. */
  OK(MPI_File_write_at_all(f, (MPI_Offset)6000000000 + rank * 10, "abcdefghij", 10, MPI_BYTE, &status));
  settle(f);
  char got[41] = {0};
  OK(MPI_File_read_at_all(f, (MPI_Offset)6000000000, got, 40, MPI_BYTE, &status));
  CHECK(!strcmp(got, "abcdefghijabcdefghijabcdefghijabcdefghij"));
  OK(MPI_File_get_size(f, &size));
  CHECK(size == (MPI_Offset)6000000040);
  OK(MPI_File_close(&f));
  free(all);
}

static void nonblocking(void) {
  enum { BLOCK = 60000, BLOCKS = 6 };
  unsigned char *all = room(4 * BLOCK * BLOCKS), *got = room(BLOCK * BLOCKS);
  MPI_Request requests[BLOCKS], request;
  MPI_File f = made("nonblocking");
  fill(all, 4 * BLOCK * BLOCKS, 8);
  for (int n = 0; n < BLOCKS; n++) {
    size_t at = (size_t)(n * ranks + rank) * BLOCK;
    OK(MPI_File_iwrite_at(f, at, all + at, BLOCK, MPI_BYTE, &requests[n]));
  }
  OK(MPI_Waitall(BLOCKS, requests, MPI_STATUSES_IGNORE));
  settle(f);
  int other = (rank + 2) % ranks;
  for (int n = 0; n < BLOCKS; n++)
    OK(MPI_File_iread_at(f, (MPI_Offset)(n * ranks + other) * BLOCK, got + n * BLOCK, BLOCK, MPI_BYTE, &requests[n]));
  OK(MPI_Waitall(BLOCKS, requests, MPI_STATUSES_IGNORE));
  for (int n = 0; n < BLOCKS; n++) SAME(got + n * BLOCK, all + (size_t)(n * ranks + other) * BLOCK, BLOCK);
  WHOLE("nonblocking", all, 4 * BLOCK * BLOCKS);
  fill(all, 4 * BLOCK * BLOCKS, 9);
  OK(MPI_File_seek(f, (MPI_Offset)rank * BLOCK * BLOCKS, MPI_SEEK_SET));
  OK(MPI_File_iwrite(f, all + (size_t)rank * BLOCK * BLOCKS, BLOCK * BLOCKS, MPI_BYTE, &request));
  OK(MPI_Wait(&request, &status));
  settle(f);
  OK(MPI_File_seek(f, (MPI_Offset)other * BLOCK * BLOCKS, MPI_SEEK_SET));
  OK(MPI_File_iread(f, got, BLOCK * BLOCKS, MPI_BYTE, &request));
  OK(MPI_Wait(&request, &status));
  SAME(got, all + (size_t)other * BLOCK * BLOCKS, BLOCK * BLOCKS);
  OK(MPI_File_close(&f));
  WHOLE("nonblocking", all, 4 * BLOCK * BLOCKS);
  free(all); free(got);
}

/* Collective, and through a view. */
static void nonblocking_collective(void) {
  enum { BLOCK = 60000 };
  unsigned char *all = room(4 * BLOCK), *got = room(BLOCK), *mine = room(BLOCK);
  MPI_Request request;
  MPI_File f = made("collectively");
  MPI_Datatype t;
  MPI_Type_vector(600, 100, 400, MPI_BYTE, &t);
  MPI_Type_commit(&t);
  OK(MPI_File_set_view(f, rank * 100, MPI_BYTE, t, "native", MPI_INFO_NULL));
  for (int r = 0; r < ranks; r++) {
    fill(mine, BLOCK, 70 + r);
    for (int n = 0; n < 600; n++) memcpy(all + n * 400 + r * 100, mine + n * 100, 100);
  }
  fill(mine, BLOCK, 70 + rank);
  OK(MPI_File_iwrite_at_all(f, 0, mine, BLOCK, MPI_BYTE, &request));
  OK(MPI_Wait(&request, &status));
  settle(f);
  OK(MPI_File_iread_all(f, got, BLOCK, MPI_BYTE, &request));
  OK(MPI_Wait(&request, &status));
  SAME(got, mine, BLOCK);
  OK(MPI_File_close(&f));
  WHOLE("collectively", all, 4 * BLOCK);
  MPI_Type_free(&t);
  free(all); free(got); free(mine);
}

static void delete_on_close(void) {
  MPI_File f = opened("deleted", MPI_MODE_CREATE | MPI_MODE_RDWR | MPI_MODE_DELETE_ON_CLOSE, MPI_INFO_NULL);
  OK(MPI_File_write_at_all(f, rank * 4, "here", 4, MPI_BYTE, &status));
  settle(f);
  WHOLE("deleted", "herehereherehere", 16);
  OK(MPI_File_close(&f));
  MPI_Barrier(W);
  CHECK(access("deleted", F_OK) && errno == ENOENT);
}

static void append(void) {
  enum { SIZE = 5000 };
  unsigned char *all = room(6 * SIZE);
  MPI_Offset at;
  fill(all, 6 * SIZE, 10);
  MPI_File f = made("append");
  if (rank == 0) OK(MPI_File_write_at(f, 0, all, SIZE, MPI_BYTE, &status));
  OK(MPI_File_close(&f));
  MPI_Barrier(W);
  f = opened("append", MPI_MODE_WRONLY | MPI_MODE_APPEND, MPI_INFO_NULL);
  OK(MPI_File_get_position(f, &at));
  CHECK(at == SIZE);
  OK(MPI_File_get_position_shared(f, &at));
  CHECK(at == SIZE);
  OK(MPI_File_seek(f, (MPI_Offset)rank * SIZE, MPI_SEEK_CUR));
  OK(MPI_File_write(f, all + (1 + rank) * SIZE, SIZE, MPI_BYTE, &status));
  OK(MPI_File_close(&f));
  WHOLE("append", all, 5 * SIZE);
  free(all);
}

static void errors(void) {
  MPI_File f;
  char byte = 1;
  OK(MPI_File_open(W, "excl", MPI_MODE_CREATE | MPI_MODE_EXCL | MPI_MODE_WRONLY, MPI_INFO_NULL, &f));
  OK(MPI_File_close(&f));
  MPI_Barrier(W);
  FAILS(MPI_ERR_FILE_EXISTS, MPI_File_open(W, "excl", MPI_MODE_CREATE | MPI_MODE_EXCL | MPI_MODE_WRONLY, MPI_INFO_NULL, &f));
  FAILS(MPI_ERR_NO_SUCH_FILE, MPI_File_open(W, "nowhere", MPI_MODE_RDONLY, MPI_INFO_NULL, &f));
  FAILS(MPI_ERR_NO_SUCH_FILE, MPI_File_open(W, "no/where", MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &f));
  CHECK(access("nowhere", F_OK) && errno == ENOENT);
  if (rank == 0) FAILS(MPI_ERR_NO_SUCH_FILE, MPI_File_delete("nowhere", MPI_INFO_NULL));
  MPI_Barrier(W);
  OK(MPI_File_open(W, "excl", MPI_MODE_RDONLY, MPI_INFO_NULL, &f));
  int rc = MPI_File_write_at(f, 0, &byte, 1, MPI_BYTE, &status);
  CHECK(rc != MPI_SUCCESS);
  OK(MPI_File_close(&f));
  CHECK(size_of("excl") == 0);
  MPI_Barrier(W);
  if (rank == 0) OK(MPI_File_delete("excl", MPI_INFO_NULL));
  MPI_Barrier(W);
  CHECK(access("excl", F_OK) && errno == ENOENT);
}

static const struct { const char *name; void (*run)(void); } cases[] = {
  {"independent", independent}, {"collective", collective}, {"atomic", atomic}, {"atomic-strided", atomic_strided},
  {"sieving", sieving}, {"shared", shared}, {"views", views}, {"sizes", sizes}, {"nonblocking", nonblocking},
  {"nonblocking-collective", nonblocking_collective},
  {"delete-on-close", delete_on_close}, {"append", append}, {"errors", errors},
};

int main(int argc, char **argv) {
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(W, &rank);
  MPI_Comm_size(W, &ranks);
  CHECK(ranks == 4 && argc > 2);
  CHECK(!chdir(argv[1]));
  MPI_File_set_errhandler(MPI_FILE_NULL, MPI_ERRORS_RETURN);
  printf("rank %d on node %s\n", rank, getenv("FOREBAY_NODE") ? getenv("FOREBAY_NODE") : "-");
  for (int a = 2; a < argc; a++) {
    int found = 0;
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
      if (strcmp(argv[a], cases[c].name) && strcmp(argv[a], "all")) continue;
      now = cases[c].name;
      double began = MPI_Wtime();
      cases[c].run();
      MPI_Barrier(W);
      if (rank == 0) { printf("done %s %.2f s\n", now, MPI_Wtime() - began); fflush(stdout); }
      found = 1;
    }
    CHECK(found);
  }
  MPI_Finalize();
  return 0;
}
