/* The output of NPB's BT-IO: a cube of points with five doubles each, cut into diagonals of cells, one diagonal per
 * rank, written step after step. Usage: btio FILE full|simple POINTS STEPS; the number of ranks is a square.
 *
 * full: a rank's cells are one file type, each step is one collective write. simple: each row of a cell is an
 * independent write at its place. The file is read back the same way, and by POSIX calls. */
#include "check.h"

#define W MPI_COMM_WORLD
enum { PER_POINT = 5, GHOSTS = 2 };

static int points, side; /* of the cube; cells along an edge */
static int start[8][3], extent[8][3]; /* of this rank's cells: x, y, z */

/* A point's value, never the same in two places of a file. */
static double value(int step, int z, int y, int x, int m) {
  return ((((double)step * points + z) * points + y) * points + x) * PER_POINT + m + 1;
}

/* NPB's multipartition: cell c of a rank lies in layer c, moved along both other axes. */
static void partition(void) {
  int i = rank % side, j = rank / side;
  for (int c = 0; c < side; c++) {
    int at[3] = {(i + c) % side, (j - c + side) % side, c};
    for (int d = 0; d < 3; d++) {
      start[c][d] = points * at[d] / side;
      extent[c][d] = points * (at[d] + 1) / side - start[c][d];
    }
  }
}

/* Cells in memory have ghost points around them. */
static int padded(int c, int d) { return extent[c][d] + 2 * GHOSTS; }
static size_t inside(int c, int z, int y) {
  return (((size_t)(z + GHOSTS) * padded(c, 1) + y + GHOSTS) * padded(c, 0) + GHOSTS) * PER_POINT;
}

static double *cells[8];

static void each_value(int step, int comparing) {
  for (int c = 0; c < side; c++)
    for (int z = 0; z < extent[c][2]; z++)
      for (int y = 0; y < extent[c][1]; y++) {
        double *row = cells[c] + inside(c, z, y);
        for (int n = 0; n < extent[c][0] * PER_POINT; n++) {
          double wanted = value(step, start[c][2] + z, start[c][1] + y, start[c][0] + n / PER_POINT, n % PER_POINT);
          if (!comparing) row[n] = wanted;
          else if (row[n] != wanted) fail(__LINE__, "a point read back", "another value");
        }
      }
}

static void types(MPI_Datatype *memory, MPI_Datatype *file) {
  MPI_Datatype in_memory[8], in_file[8];
  MPI_Aint places[8], zero[8] = {0};
  int ones[8];
  for (int c = 0; c < side; c++) {
    int sizes[4] = {padded(c, 2), padded(c, 1), padded(c, 0), PER_POINT};
    int parts[4] = {extent[c][2], extent[c][1], extent[c][0], PER_POINT}, starts[4] = {GHOSTS, GHOSTS, GHOSTS, 0};
    MPI_Type_create_subarray(4, sizes, parts, starts, MPI_ORDER_C, MPI_DOUBLE, &in_memory[c]);
    int cube[4] = {points, points, points, PER_POINT};
    int at[4] = {start[c][2], start[c][1], start[c][0], 0};
    MPI_Type_create_subarray(4, cube, parts, at, MPI_ORDER_C, MPI_DOUBLE, &in_file[c]);
    MPI_Get_address(cells[c], &places[c]);
    ones[c] = 1;
  }
  MPI_Type_create_struct(side, ones, places, in_memory, memory);
  MPI_Type_create_struct(side, ones, zero, in_file, file);
  MPI_Type_commit(memory);
  MPI_Type_commit(file);
}

/* Each row of each cell, at its place. */
static void rows(MPI_File f, int step, int writing) {
  for (int c = 0; c < side; c++)
    for (int z = 0; z < extent[c][2]; z++)
      for (int y = 0; y < extent[c][1]; y++) {
        MPI_Offset at = (MPI_Offset)(value(step, start[c][2] + z, start[c][1] + y, start[c][0], 0) - 1) * 8;
        double *row = cells[c] + inside(c, z, y);
        int n = extent[c][0] * PER_POINT;
        if (writing) OK(MPI_File_write_at(f, at, row, n, MPI_DOUBLE, MPI_STATUS_IGNORE));
        else OK(MPI_File_read_at(f, at, row, n, MPI_DOUBLE, MPI_STATUS_IGNORE));
      }
}

int main(int argc, char **argv) {
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(W, &rank);
  MPI_Comm_size(W, &ranks);
  CHECK(argc == 5);
  const char *name = argv[1];
  int full = !strcmp(argv[2], "full"), steps = atoi(argv[4]);
  points = atoi(argv[3]);
  while (side * side < ranks) side++;
  CHECK(side * side == ranks && side <= 8 && points >= side && steps > 0);
  now = argv[2];
  MPI_File_set_errhandler(MPI_FILE_NULL, MPI_ERRORS_RETURN);
  partition();
  for (int c = 0; c < side; c++)
    cells[c] = room((size_t)padded(c, 0) * padded(c, 1) * padded(c, 2) * PER_POINT * sizeof(double));
  MPI_Datatype memory, file;
  types(&memory, &file);
  double seconds[2];
  for (int writing = 1; writing >= 0; writing--) {
    MPI_Barrier(W);
    double began = MPI_Wtime();
    MPI_File f;
    OK(MPI_File_open(W, name, writing ? MPI_MODE_CREATE | MPI_MODE_WRONLY : MPI_MODE_RDONLY, MPI_INFO_NULL, &f));
    if (full) OK(MPI_File_set_view(f, 0, MPI_DOUBLE, file, "native", MPI_INFO_NULL));
    /* Making and checking values isn't counted. */
    double aside = 0;
    for (int step = 0; step < steps; step++) {
      double then = MPI_Wtime();
      if (writing) each_value(step, 0);
      aside += MPI_Wtime() - then;
      if (!full) rows(f, step, writing);
      else if (writing) OK(MPI_File_write_all(f, MPI_BOTTOM, 1, memory, MPI_STATUS_IGNORE));
      else OK(MPI_File_read_all(f, MPI_BOTTOM, 1, memory, MPI_STATUS_IGNORE));
      then = MPI_Wtime();
      if (!writing) each_value(step, 1);
      aside += MPI_Wtime() - then;
    }
    OK(MPI_File_close(&f));
    double took = MPI_Wtime() - began - aside;
    MPI_Allreduce(&took, &seconds[writing], 1, MPI_DOUBLE, MPI_MAX, W);
  }
  size_t numbers = (size_t)points * points * points * PER_POINT * steps;
  double *wanted = room(numbers * sizeof(double));
  for (size_t n = 0; n < numbers; n++) wanted[n] = n + 1;
  WHOLE(name, wanted, numbers * sizeof(double));
  if (rank == 0)
    printf("%s: %.1f MB, written at %.1f MB/s, read at %.1f MB/s\n", argv[2], numbers * 8e-6,
           numbers * 8e-6 / seconds[1], numbers * 8e-6 / seconds[0]);
  MPI_Finalize();
  return 0;
}
