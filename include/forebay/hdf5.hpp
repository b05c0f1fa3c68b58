/* hdf5.hpp: HDF5's driver "forebay" as a C++17 class with the interface of h5cpp's file drivers.
 *
 *     forebay::hdf5_driver driver("default", "mutability=immutable");
 *     driver(fapl);                       // hid_t, h5cpp's FileAccessList, H5::FileAccPropList
 *
 * See hdf5.h. Needs HDF5 1.14 or later, and no other library.
 */
#ifndef FOREBAY_HDF5_HPP
#define FOREBAY_HDF5_HPP

#include "hdf5.h"

#include <stdexcept>
#include <string>
#include <utility>

namespace forebay {

/* The driver with a pool, and with controls for new files. One object can set any number of
 * property lists. */
class hdf5_driver {
public:
    /* `pool` empty: that of $FOREBAY_POOL, else "default". `controls` empty: declares none. */
    explicit hdf5_driver(std::string pool = {}, std::string controls = {})
        : pool_(std::move(pool)), controls_(std::move(controls))
    {
    }

    const std::string &pool() const noexcept { return pool_; }
    const std::string &controls() const noexcept { return controls_; }

    /* Sets the driver in a file access property list. Throws std::runtime_error if HDF5 can't load
     * the driver ($HDF5_PLUGIN_PATH), or the texts are too long. */
    void operator()(hid_t fapl) const
    {
        const char *pool = pool_.empty() ? nullptr : pool_.c_str();
        const char *controls = controls_.empty() ? nullptr : controls_.c_str();
        if (H5Pset_fapl_forebay(fapl, pool, controls) < 0)
            throw std::runtime_error("HDF5 can't set the driver 'forebay' (pool '" + pool_ + "', controls '" +
                                     controls_ + "'): is libforebay_vfd.so in a directory of $HDF5_PLUGIN_PATH?");
    }

#ifdef H5_HAVE_PARALLEL
    /* As above, for files that all ranks of a communicator open together. All ranks call it. */
    void operator()(hid_t fapl, MPI_Comm comm, MPI_Info info = MPI_INFO_NULL) const
    {
        (*this)(fapl);
        if (H5Pset_mpi_params(fapl, comm, info) < 0)
            throw std::runtime_error("HDF5 can't set the communicator for the driver 'forebay'");
    }
#endif

    /* Accept the property list classes of C++ libraries: by getId(), or by conversion to hid_t. */
    template <class List>
    auto operator()(const List &fapl) const -> decltype(static_cast<void>(fapl.getId()))
    {
        (*this)(static_cast<hid_t>(fapl.getId()));
    }
    template <class List>
    auto operator()(const List &fapl) const -> decltype(static_cast<void>(static_cast<hid_t>(fapl)))
    {
        (*this)(static_cast<hid_t>(fapl));
    }

private:
    std::string pool_, controls_;
};

} // namespace forebay

#endif
