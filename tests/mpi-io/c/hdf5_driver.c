/* HDF5 files through the driver "forebay", by parallel HDF5 1.14 or later.
 *
 *     hdf5_driver write DRIVER FILE [CONTROLS]    make the file; what is in it doesn't depend on the ranks
 *     hdf5_driver check DRIVER FILE               read all of it, collectively and not
 *     hdf5_driver change DRIVER FILE              open it for writing, add to it
 *     hdf5_driver absent DRIVER FILE              the last rank names a pool that isn't there
 *     hdf5_driver missing DRIVER FILE             no rank can open it
 *     hdf5_driver full DRIVER FILE                more than the pool takes: 16 MiB of each rank
 *
 * DRIVER: forebay, or mpio. */
#include "check.h"
#include <forebay/hdf5.h>

#define ROWS 24
#define COLUMNS 301

static hid_t good(int line, hid_t id) {
  if (id < 0) fail(line, "HDF5", "see above");
  return id;
}
#define H(x) good(__LINE__, (x))

static const char *driver, *path;

static hid_t list(const char *pool, const char *controls) {
  hid_t p = H(H5Pcreate(H5P_FILE_ACCESS));
  if (strcmp(driver, "mpio"))
    H(H5Pset_fapl_forebay_mpi(p, MPI_COMM_WORLD, MPI_INFO_NULL, pool, controls));
  else
    H(H5Pset_fapl_mpio(p, MPI_COMM_WORLD, MPI_INFO_NULL));
  return p;
}

/* How data are transferred: bit 0: collectively; bit 1: without selection I/O, so by MPI's datatypes. */
static hid_t transfer(int how) {
  hid_t p = H(H5Pcreate(H5P_DATASET_XFER));
  H(H5Pset_dxpl_mpio(p, how & 1 ? H5FD_MPIO_COLLECTIVE : H5FD_MPIO_INDEPENDENT));
  if (how & 2) H(H5Pset_selection_io(p, H5D_SELECTION_IO_MODE_OFF));
  return p;
}

static long value(const char *name, hsize_t row, hsize_t column) {
  return (long)(row * COLUMNS + column) * 7 + name[0] * 1000003L + name[strlen(name) - 1];
}

/* The part of a rank: every `ranks`th column, from the one with its number. */
static void part(hid_t space) {
  hsize_t at[2] = {0, rank}, stride[2] = {1, ranks};
  hsize_t count[2] = {ROWS, (COLUMNS - rank + ranks - 1) / ranks};
  H(H5Sselect_hyperslab(space, H5S_SELECT_SET, at, stride, count, NULL));
}

static const char *names[] = {"plain-0",   "plain-1",   "plain-2",    "plain-3",    "chunked-0", "chunked-1",
                              "chunked-2", "chunked-3", "filtered-1", "filtered-3", "early-0",   "convert-0",
                              "convert-1", "convert-3"};
enum { SETS = sizeof names / sizeof *names };

static void plane(hid_t file, const char *name) {
  int how = name[strlen(name) - 1] - '0';
  hid_t layout = H(H5Pcreate(H5P_DATASET_CREATE));
  hsize_t chunk[2] = {7, 64}, size[2] = {ROWS, COLUMNS};
  if (name[0] == 'c' && name[1] == 'h') H(H5Pset_chunk(layout, 2, chunk));
  if (name[0] == 'f') {
    H(H5Pset_chunk(layout, 2, chunk));
    H(H5Pset_shuffle(layout));
    H(H5Pset_fletcher32(layout));
  }
  if (name[0] == 'e') {
    H(H5Pset_chunk(layout, 2, chunk));
    H(H5Pset_alloc_time(layout, H5D_ALLOC_TIME_EARLY));
    long fill = -1;
    H(H5Pset_fill_value(layout, H5T_NATIVE_LONG, &fill));
  }
  hid_t type = name[0] == 'c' && name[1] == 'o' ? H5T_IEEE_F64BE : H5T_NATIVE_LONG;
  hid_t space = H(H5Screate_simple(2, size, NULL));
  hid_t set = H(H5Dcreate(file, name, type, space, H5P_DEFAULT, layout, H5P_DEFAULT));
  part(space);
  hsize_t n = (hsize_t)H5Sget_select_npoints(space), k = 0;
  /* Memory has gaps, too. */
  hsize_t room_of = 2 * n, first = 1, two = 2;
  hid_t memory = H(H5Screate_simple(1, &room_of, NULL));
  H(H5Sselect_hyperslab(memory, H5S_SELECT_SET, &first, &two, &n, NULL));
  long *values = room(room_of * sizeof *values);
  for (hsize_t row = 0; row < ROWS; row++)
    for (hsize_t column = rank; column < COLUMNS; column += ranks) values[2 * k++ + 1] = value(name, row, column);
  CHECK(k == n);
  hid_t xfer = transfer(how);
  H(H5Dwrite(set, H5T_NATIVE_LONG, memory, space, xfer, values));
  free(values);
  H(H5Pclose(xfer)); H(H5Sclose(memory)); H(H5Sclose(space)); H(H5Dclose(set)); H(H5Pclose(layout));
}

static void compare_all(hid_t file, const char *name) {
  static long got[ROWS * COLUMNS];
  hid_t set = H(H5Dopen(file, name, H5P_DEFAULT));
  for (int how = 0; how < 4; how++) {
    /* Each element is a call of the driver then. */
    if (how == 2 && name[strlen(name) - 1] != '2') continue;
    hid_t xfer = transfer(how);
    memset(got, 0, sizeof got);
    H(H5Dread(set, H5T_NATIVE_LONG, H5S_ALL, H5S_ALL, xfer, got));
    for (hsize_t k = 0; k < ROWS * COLUMNS; k++)
      if (got[k] != value(name, k / COLUMNS, k % COLUMNS)) {
        char why[120];
        snprintf(why, sizeof why, "%s, how %d, element %d: %ld", name, how, (int)k, got[k]);
        fail(__LINE__, "values", why);
      }
    /* A part of the rank's own, with gaps. */
    hsize_t size[2] = {ROWS, COLUMNS}, k = 0;
    hid_t space = H(H5Screate_simple(2, size, NULL));
    part(space);
    hsize_t n = (hsize_t)H5Sget_select_npoints(space);
    hid_t memory = H(H5Screate_simple(1, &n, NULL));
    memset(got, 0, sizeof got);
    H(H5Dread(set, H5T_NATIVE_LONG, memory, space, xfer, got));
    for (hsize_t row = 0; row < ROWS; row++)
      for (hsize_t column = rank; column < COLUMNS; column += ranks)
        CHECK(got[k++] == value(name, row, column));
    H(H5Sclose(memory)); H(H5Sclose(space)); H(H5Pclose(xfer));
  }
  H(H5Dclose(set));
}

/* Records are added at the end: each rank writes some, all see all after a flush. */
static void growing(hid_t file) {
  hsize_t none = 0, most = H5S_UNLIMITED, chunk = 50, step = 60;
  hid_t space = H(H5Screate_simple(1, &none, &most)), layout = H(H5Pcreate(H5P_DATASET_CREATE));
  H(H5Pset_chunk(layout, 1, &chunk));
  hid_t set = H(H5Dcreate(file, "growing", H5T_NATIVE_LONG, space, H5P_DEFAULT, layout, H5P_DEFAULT));
  H(H5Sclose(space)); H(H5Pclose(layout));
  for (int n = 0; n < 6; n++) {
    hsize_t size = (n + 1) * step, first = n * step + rank * step / ranks;
    hsize_t count = (rank + 1) * step / ranks - rank * step / ranks;
    H(H5Dset_extent(set, &size));
    long *records = room(size * sizeof *records);
    for (hsize_t k = 0; k < count; k++) records[k] = (long)(first + k) * 3;
    space = H(H5Dget_space(set));
    hid_t memory = H(H5Screate_simple(1, &count, NULL)), xfer = transfer(n & 3);
    H(H5Sselect_hyperslab(space, H5S_SELECT_SET, &first, NULL, &count, NULL));
    H(H5Dwrite(set, H5T_NATIVE_LONG, memory, space, xfer, records));
    H(H5Sclose(memory)); H(H5Sclose(space)); H(H5Pclose(xfer));
    H(H5Fflush(file, H5F_SCOPE_GLOBAL));
    H(H5Dread(set, H5T_NATIVE_LONG, H5S_ALL, H5S_ALL, H5P_DEFAULT, records));
    for (hsize_t k = 0; k < size; k++) CHECK(records[k] == (long)k * 3);
    free(records);
    MPI_Barrier(MPI_COMM_WORLD);
  }
  H(H5Dclose(set));
}

static void groups(hid_t file, const char *top) {
  hid_t group = H(H5Gcreate(file, top, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
  for (int n = 0; n < 30; n++) {
    char name[40];
    snprintf(name, sizeof name, "group %d", n);
    hid_t inner = H(H5Gcreate(group, name, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
    hid_t one = H(H5Screate(H5S_SCALAR));
    hid_t attribute = H(H5Acreate(inner, "number", H5T_STD_I32LE, one, H5P_DEFAULT, H5P_DEFAULT));
    H(H5Awrite(attribute, H5T_NATIVE_INT, &n));
    H(H5Aclose(attribute)); H(H5Sclose(one)); H(H5Gclose(inner));
  }
  H(H5Gclose(group));
}

static void compare_groups(hid_t file, const char *top) {
  for (int n = 0; n < 30; n++) {
    char name[80];
    int got = -1;
    snprintf(name, sizeof name, "%s/group %d", top, n);
    hid_t attribute = H(H5Aopen_by_name(file, name, "number", H5P_DEFAULT, H5P_DEFAULT));
    H(H5Aread(attribute, H5T_NATIVE_INT, &got));
    CHECK(got == n);
    H(H5Aclose(attribute));
  }
}

static void write_all(const char *controls) {
  hid_t access = list(NULL, controls);
  hid_t file = H(H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, access));
  /* HDF5 knows that the file is a parallel one. */
  hid_t of = H(H5Fget_access_plist(file));
  MPI_Comm comm; MPI_Info info; int size, same;
  H(H5Pget_mpi_params(of, &comm, &info));
  OK(MPI_Comm_size(comm, &size));
  OK(MPI_Comm_compare(comm, MPI_COMM_WORLD, &same));
  CHECK(size == ranks && same == MPI_CONGRUENT && info != MPI_INFO_NULL);
  MPI_Comm_free(&comm); MPI_Info_free(&info);
  H(H5Pclose(of));
  for (int k = 0; k < SETS; k++) { now = names[k]; plane(file, names[k]); }
  now = "growing"; growing(file);
  now = "groups"; groups(file, "groups");
  H(H5Fclose(file)); H(H5Pclose(access));
}

static void check_all(void) {
  for (int pass = 0; pass < 3; pass++) {
    hid_t access = list(NULL, NULL);
    if (pass == 2) H(H5Pset_all_coll_metadata_ops(access, 1));
    hid_t file = H(H5Fopen(path, pass == 1 ? H5F_ACC_RDWR : H5F_ACC_RDONLY, access));
    for (int k = 0; k < SETS; k++) { now = names[k]; compare_all(file, names[k]); }
    now = "groups"; compare_groups(file, "groups");
    if (H5Lexists(file, "changed", H5P_DEFAULT) > 0) { compare_groups(file, "changed/groups"); compare_all(file, "changed/plain-1"); }
    H(H5Fclose(file)); H(H5Pclose(access));
  }
}

static void change(void) {
  hid_t access = list(NULL, NULL);
  H(H5Pset_all_coll_metadata_ops(access, 1));
  H(H5Pset_coll_metadata_write(access, 1));
  hid_t file = H(H5Fopen(path, H5F_ACC_RDWR, access));
  hid_t group = H(H5Gcreate(file, "changed", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
  groups(group, "groups");
  H(H5Fflush(file, H5F_SCOPE_GLOBAL));
  /* The name is a part of the values. */
  hsize_t size[2] = {ROWS, COLUMNS};
  hid_t space = H(H5Screate_simple(2, size, NULL));
  hid_t set = H(H5Dcreate(group, "plain-1", H5T_NATIVE_LONG, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
  hsize_t at[2] = {rank * ROWS / ranks, 0}, count[2] = {(rank + 1) * ROWS / ranks - at[0], COLUMNS};
  H(H5Sselect_hyperslab(space, H5S_SELECT_SET, at, NULL, count, NULL));
  hid_t memory = H(H5Screate_simple(2, count, NULL)), xfer = transfer(1);
  long *values = room(ROWS * COLUMNS * sizeof *values);
  for (hsize_t k = 0; k < count[0] * COLUMNS; k++) values[k] = value("changed/plain-1", at[0] + k / COLUMNS, k % COLUMNS);
  H(H5Dwrite(set, H5T_NATIVE_LONG, memory, space, xfer, values));
  free(values);
  H(H5Sclose(memory)); H(H5Sclose(space)); H(H5Pclose(xfer)); H(H5Dclose(set)); H(H5Gclose(group));
  H(H5Fclose(file)); H(H5Pclose(access));
}

/* Every rank has failed, and none waits. */
static void all_failed(hid_t id) {
  int failed = id < 0, count;
  OK(MPI_Allreduce(&failed, &count, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD));
  CHECK(count == ranks);
}

static void full(void) {
  hid_t access = list(NULL, NULL);
  hid_t file = H(H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, access));
  hsize_t per = 16 << 20, size = per * ranks, at = per * rank;
  hid_t space = H(H5Screate_simple(1, &size, NULL));
  hid_t set = H(H5Dcreate(file, "x", H5T_NATIVE_CHAR, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
  H(H5Sselect_hyperslab(space, H5S_SELECT_SET, &at, NULL, &per, NULL));
  hid_t memory = H(H5Screate_simple(1, &per, NULL)), xfer = transfer(1);
  char *bytes = room(per);
  memset(bytes, 1, per);
  all_failed(H5Dwrite(set, H5T_NATIVE_CHAR, memory, space, xfer, bytes));
  free(bytes);
  /* Closing sets the size, which the pool may refuse: on all ranks or on none. */
  H5Sclose(memory); H5Pclose(xfer); H5Sclose(space); H5Dclose(set);
  int closed = H5Fclose(file) < 0, count;
  OK(MPI_Allreduce(&closed, &count, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD));
  CHECK(count == 0 || count == ranks);
  H(H5Pclose(access));
}

int main(int argc, char **argv) {
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  CHECK(argc >= 4);
  now = argv[1]; driver = argv[2]; path = argv[3];
  hid_t access;
  if (!strcmp(now, "write")) {
    write_all(argc > 4 ? argv[4] : NULL);
  } else if (!strcmp(now, "check")) {
    check_all();
  } else if (!strcmp(now, "change")) {
    change();
  } else if (!strcmp(now, "full")) {
    full();
  } else {
    if (!strcmp(now, "absent")) {
      access = list(rank == ranks - 1 ? "absent" : NULL, NULL);
      all_failed(H5Fcreate(path, H5F_ACC_EXCL, H5P_DEFAULT, access));
      H(H5Pclose(access));
    } else {
      CHECK(!strcmp(now, "missing"));
    }
    access = list(NULL, NULL);
    all_failed(H5Fopen(path, H5F_ACC_RDWR, access));
    H(H5Pclose(access));
  }
  /* Communicators, lists and files are all given back. */
  CHECK(H5Fget_obj_count(H5F_OBJ_ALL, H5F_OBJ_ALL) <= 0);
  if (!rank) printf("%s: %d ranks, same\n", argv[1], ranks);
  MPI_Finalize();
  return 0;
}
