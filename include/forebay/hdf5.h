/* HDF5 files in a Forebay pool, by the virtual file driver "forebay" (libforebay_vfd.so). HDF5 1.14
 * and later load it at run time from $HDF5_PLUGIN_PATH, so programs don't link to it.
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
 * pool: the pool's name; NULL: that of $FOREBAY_POOL, else "default".
 * controls: the controls to declare for files that are created with the list, such as
 * "mutability=append"; NULL: none, so the pool's rules and the directory's controls apply.
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
/* As H5Pset_fapl_forebay, for files that all ranks of an MPI communicator open together, as with
 * H5Pset_fapl_mpio. Each rank writes its part directly into the pool. See docs/howto/python.md.
 *
 * info: may be MPI_INFO_NULL. H5Pget_mpi_params returns it to programs; the driver doesn't use it.
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
