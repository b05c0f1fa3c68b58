//! Links this library like the preload library, plus an RPATH to the system's directories. The
//! loader searches an RPATH before `LD_LIBRARY_PATH` and the program's own search path, see
//! src/lib.rs.

/// Directories in which distributions install libc.
const SYSTEM: &str =
    "/lib/x86_64-linux-gnu:/usr/lib/x86_64-linux-gnu:/lib64:/usr/lib64:/lib:/usr/lib";

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    for function in ["malloc", "calloc", "realloc", "free", "strdup"] {
        println!("cargo:rustc-cdylib-link-arg=-Wl,--wrap={function}");
    }
    println!("cargo:rustc-cdylib-link-arg=-Wl,--disable-new-dtags,-rpath,{SYSTEM}");
}
