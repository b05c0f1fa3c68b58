/* HDF5 files in a Forebay pool: the virtual file driver "forebay" (libforebay_vfd.so), which HDF5 1.14
 * and later load at run time from $HDF5_PLUGIN_PATH. Nothing is to be linked.
 *
 *     hid_t fapl = H5Pcreate(H5P_FILE_ACCESS);
 *     H5Pset_fapl_forebay(fapl, "default", "mutability=immutable,consistency=commit");
 *     hid_t file = H5Fcreate("/fb/case/mesh.h5", H5F_ACC_TRUNC, H5P_DEFAULT, fapl);
 */
#ifndef FOREBAY_HDF5_H
#define FOREBAY_HDF5_H

#include <hdf5.h>
#include <stdio.h>
#include <string.h>

#if !H5_VERSION_GE(1, 14, 0)
#error "forebay/hdf5.h needs HDF5 1.14 or later: earlier ones don't load drivers at run time"
#endif

/* Sets the driver in a file access property list.
 *
 * pool: its name; NULL: that of $FOREBAY_POOL, else "default".
 * controls: what is declared of files that are made with the list, such as "mutability=append"; NULL:
 * nothing (the pool's rules and the directory's controls hold).
 *
 * Returns a negative value if the texts are too long (1 KiB together), or HDF5 can't load the driver. */
static inline herr_t H5Pset_fapl_forebay(hid_t fapl, const char *pool, const char *controls)
{
    char config[1024];
    int length = snprintf(config, sizeof config, "%s%s%s%s%s", pool ? "pool=" : "", pool ? pool : "",
                          pool && controls ? ";" : "", controls ? "controls=" : "",
                          controls ? controls : "");
    if (length < 0 || (size_t)length >= sizeof config)
        return -1;
    return H5Pset_driver_by_name(fapl, "forebay", config);
}

#ifdef H5_HAVE_PARALLEL
/* As H5Pset_fapl_forebay, for files that all ranks of an MPI communicator open together, as those of
 * H5Pset_fapl_mpio are. Each rank writes its part into the pool itself. See docs/howto/python.md.
 *
 * info: MPI_INFO_NULL, or what programs get back by H5Pget_mpi_params; the driver reads none of it.
 *
 * Collective: all ranks call it. Returns as H5Pset_fapl_forebay does. */
static inline herr_t H5Pset_fapl_forebay_mpi(hid_t fapl, MPI_Comm comm, MPI_Info info, const char *pool,
                                             const char *controls)
{
    if (H5Pset_fapl_forebay(fapl, pool, controls) < 0)
        return -1;
    return H5Pset_mpi_params(fapl, comm, info);
}
#endif

#endif
