/* All ranks write one HDF5 file, in each layout that HDF5 has. Usage: hdf5 FILE. What is in it doesn't depend on the
 * number of ranks, so that runs can be compared by h5diff and h5dump. */
#include "check.h"
#include <hdf5.h>

#define ROWS 240
#define COLUMNS 311

static hid_t good(int line, hid_t id) {
  if (id < 0) fail(line, "HDF5", "see above");
  return id;
}
#define H(x) good(__LINE__, (x))

static hid_t transfer(int collective) {
  hid_t p = H(H5Pcreate(H5P_DATASET_XFER));
  H(H5Pset_dxpl_mpio(p, collective ? H5FD_MPIO_COLLECTIVE : H5FD_MPIO_INDEPENDENT));
  return p;
}

/* A plane of doubles, of which each rank writes its rows: all at once, or alternate ones one by one. */
static void plane(hid_t file, const char *name, hid_t layout, int collective, int blocks) {
  hsize_t size[2] = {ROWS, COLUMNS};
  hid_t space = H(H5Screate_simple(2, size, NULL));
  hid_t set = H(H5Dcreate(file, name, H5T_IEEE_F64LE, space, H5P_DEFAULT, layout, H5P_DEFAULT));
  hid_t how = transfer(collective);
  double *row = room(ROWS * COLUMNS * sizeof(double));
  hsize_t per = blocks ? (ROWS + ranks - 1) / ranks : 1;
  for (hsize_t first = rank * per; first < (hsize_t)(blocks ? (rank + 1) * per : ROWS); first += ranks * per) {
    hsize_t at[2] = {first, 0}, count[2] = {first + per > ROWS ? ROWS - first : per, COLUMNS};
    for (hsize_t n = 0; n < count[0] * COLUMNS; n++) row[n] = (first * COLUMNS + n) * 0.5;
    hid_t memory = H(H5Screate_simple(2, count, NULL));
    H(H5Sselect_hyperslab(space, H5S_SELECT_SET, at, NULL, count, NULL));
    H(H5Dwrite(set, H5T_NATIVE_DOUBLE, memory, space, how, row));
    H(H5Sclose(memory));
  }
  free(row);
  H(H5Pclose(how));
  H(H5Dclose(set));
  H(H5Sclose(space));
}

/* Records that are added at the end, step by step: the dataset grows. */
static void growing(hid_t file) {
  struct record { int step, place; double value; };
  hid_t type = H(H5Tcreate(H5T_COMPOUND, sizeof(struct record)));
  H(H5Tinsert(type, "step", HOFFSET(struct record, step), H5T_NATIVE_INT));
  H(H5Tinsert(type, "place", HOFFSET(struct record, place), H5T_NATIVE_INT));
  H(H5Tinsert(type, "value", HOFFSET(struct record, value), H5T_NATIVE_DOUBLE));
  hsize_t none = 0, most = H5S_UNLIMITED, chunk = 100, step = 60;
  hid_t space = H(H5Screate_simple(1, &none, &most)), layout = H(H5Pcreate(H5P_DATASET_CREATE));
  H(H5Pset_chunk(layout, 1, &chunk));
  hid_t set = H(H5Dcreate(file, "growing", type, space, H5P_DEFAULT, layout, H5P_DEFAULT)), how = transfer(1);
  H(H5Sclose(space));
  for (int n = 0; n < 8; n++) {
    hsize_t size = (n + 1) * step, first = n * step + rank * step / ranks, count = (rank + 1) * step / ranks - rank * step / ranks;
    H(H5Dset_extent(set, &size));
    struct record *records = room(count * sizeof *records);
    for (hsize_t k = 0; k < count; k++) records[k] = (struct record){n, first + k, 1.0 / (first + k + 1)};
    space = H(H5Dget_space(set));
    H(H5Sselect_hyperslab(space, H5S_SELECT_SET, &first, NULL, &count, NULL));
    hid_t memory = H(H5Screate_simple(1, &count, NULL));
    H(H5Dwrite(set, type, memory, space, how, records));
    H(H5Sclose(memory));
    H(H5Sclose(space));
    free(records);
    if (n % 3 == 0) H(H5Fflush(file, H5F_SCOPE_GLOBAL));
  }
  H(H5Pclose(how)); H(H5Pclose(layout)); H(H5Dclose(set)); H(H5Tclose(type));
}

int main(int argc, char **argv) {
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  CHECK(argc == 2);
  now = "hdf5";
  hid_t access = H(H5Pcreate(H5P_FILE_ACCESS));
  H(H5Pset_fapl_mpio(access, MPI_COMM_WORLD, MPI_INFO_NULL));
  hid_t file = H(H5Fcreate(argv[1], H5F_ACC_TRUNC, H5P_DEFAULT, access));
  hid_t plain = H(H5Pcreate(H5P_DATASET_CREATE)), chunked = H(H5Pcreate(H5P_DATASET_CREATE));
  hid_t packed = H(H5Pcreate(H5P_DATASET_CREATE));
  hsize_t chunk[2] = {37, 64};
  H(H5Pset_chunk(chunked, 2, chunk));
  H(H5Pset_chunk(packed, 2, chunk));
  H(H5Pset_deflate(packed, 6));
  plane(file, "rows", plain, 1, 1);
  plane(file, "alternate", plain, 0, 0);
  plane(file, "chunked", chunked, 1, 1);
  plane(file, "chunked-alternate", chunked, 0, 0);
  /* Filters ask for collective writes. */
  plane(file, "packed", packed, 1, 1);
  growing(file);
  hid_t group = H(H5Gcreate(file, "group", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
  for (int n = 0; n < 20; n++) {
    char name[40];
    snprintf(name, sizeof name, "attribute %d", n);
    hid_t one = H(H5Screate(H5S_SCALAR));
    hid_t attribute = H(H5Acreate(group, name, H5T_STD_I32LE, one, H5P_DEFAULT, H5P_DEFAULT));
    H(H5Awrite(attribute, H5T_NATIVE_INT, &n));
    H(H5Aclose(attribute)); H(H5Sclose(one));
  }
  H(H5Gclose(group)); H(H5Pclose(plain)); H(H5Pclose(chunked)); H(H5Pclose(packed));
  H(H5Fclose(file));

  /* Each rank reads the rows of the next one. */
  file = H(H5Fopen(argv[1], H5F_ACC_RDONLY, access));
  const char *names[] = {"rows", "alternate", "chunked", "chunked-alternate", "packed"};
  double *all = room(ROWS * COLUMNS * sizeof(double));
  hid_t how = transfer(1);
  for (int k = 0; k < 5; k++) {
    hid_t set = H(H5Dopen(file, names[k], H5P_DEFAULT));
    H(H5Dread(set, H5T_NATIVE_DOUBLE, H5S_ALL, H5S_ALL, how, all));
    for (int n = 0; n < ROWS * COLUMNS; n++) CHECK(all[n] == n * 0.5);
    H(H5Dclose(set));
  }
  free(all);
  H(H5Pclose(how)); H(H5Fclose(file)); H(H5Pclose(access));
  MPI_Finalize();
  return 0;
}
