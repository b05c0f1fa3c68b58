//! Links as the preload library is linked, and with an RPATH: that is looked at before
//! `LD_LIBRARY_PATH` and what the program says, see src/lib.rs.

/// Where distributions keep libc.
const SYSTEM: &str =
    "/lib/x86_64-linux-gnu:/usr/lib/x86_64-linux-gnu:/lib64:/usr/lib64:/lib:/usr/lib";

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    for function in ["malloc", "calloc", "realloc", "free", "strdup"] {
        println!("cargo:rustc-cdylib-link-arg=-Wl,--wrap={function}");
    }
    println!("cargo:rustc-cdylib-link-arg=-Wl,--disable-new-dtags,-rpath,{SYSTEM}");
}
