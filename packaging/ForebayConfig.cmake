# find_package(Forebay) gives the target Forebay::iov: iov.h, iov.hpp and the library. Lies in PREFIX/lib/cmake/Forebay.
get_filename_component(forebay_prefix "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
if(NOT TARGET Forebay::iov)
    add_library(Forebay::iov SHARED IMPORTED)
    set_target_properties(Forebay::iov PROPERTIES
        IMPORTED_LOCATION "${forebay_prefix}/lib/libforebay_iov.so"
        IMPORTED_NO_SONAME TRUE
        INTERFACE_INCLUDE_DIRECTORIES "${forebay_prefix}/include")
endif()
