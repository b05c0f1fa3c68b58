// Writes and reads a file of a pool through forebay/hdf5.hpp. Usage: hdf5_driver PATH POOL CONTROLS
#include <forebay/hdf5.hpp>

#include <cstdio>
#include <vector>

// As the property lists of C++ libraries: h5cpp's converts, that of HDF5's own C++ library has getId().
struct converts {
    hid_t id;
    explicit operator hid_t() const { return id; }
};
struct has_id {
    hid_t id;
    hid_t getId() const { return id; }
};

static int failed(const char *what)
{
    std::fprintf(stderr, "failed: %s\n", what);
    return 1;
}

int main(int argc, char **argv)
{
    if (argc != 4)
        return failed("usage: hdf5_driver PATH POOL CONTROLS");
    const forebay::hdf5_driver driver(argv[2], argv[3]);
    const hid_t fapl = H5Pcreate(H5P_FILE_ACCESS);
    driver(fapl);
    driver(converts{fapl});
    driver(has_id{fapl});

    const hsize_t count = 100000;
    std::vector<double> values(count), again(count);
    for (hsize_t i = 0; i < count; i++)
        values[i] = 0.5 * static_cast<double>(i);
    hid_t file = H5Fcreate(argv[1], H5F_ACC_TRUNC, H5P_DEFAULT, fapl);
    if (file < 0)
        return failed("H5Fcreate");
    const hid_t space = H5Screate_simple(1, &count, nullptr);
    hid_t set = H5Dcreate2(file, "x", H5T_NATIVE_DOUBLE, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    if (set < 0 || H5Dwrite(set, H5T_NATIVE_DOUBLE, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()) < 0)
        return failed("H5Dwrite");
    if (H5Dclose(set) < 0 || H5Fclose(file) < 0)
        return failed("H5Fclose");

    file = H5Fopen(argv[1], H5F_ACC_RDONLY, fapl);
    set = H5Dopen2(file, "x", H5P_DEFAULT);
    if (set < 0 || H5Dread(set, H5T_NATIVE_DOUBLE, H5S_ALL, H5S_ALL, H5P_DEFAULT, again.data()) < 0)
        return failed("H5Dread");
    if (again != values)
        return failed("what was read isn't what was written");
    H5Dclose(set);
    H5Fclose(file);
    H5Sclose(space);
    H5Pclose(fapl);
    std::puts("same");
    return 0;
}
