"""pandas, pyarrow, polars, xarray, Zarr, dask, joblib: they read and write `forebay://` paths."""

import numpy
import pytest

import forebay

URL = "forebay://tests"


@pytest.fixture
def table(pool):
    pandas = pytest.importorskip("pandas")
    return pandas.DataFrame({"step": range(1000), "p": numpy.linspace(0, 1, 1000), "name": ["x%d" % i for i in range(1000)]})


def test_pandas(table):
    import pandas

    table.to_csv(URL + "/t/a.csv", index=False)
    table.to_parquet(URL + "/t/a.parquet")
    table.to_json(URL + "/t/a.json.gz")
    pandas.testing.assert_frame_equal(pandas.read_csv(URL + "/t/a.csv"), table)
    pandas.testing.assert_frame_equal(pandas.read_parquet(URL + "/t/a.parquet"), table)
    pandas.testing.assert_frame_equal(pandas.read_json(URL + "/t/a.json.gz"), table, check_dtype=False)


def test_pyarrow(pool, table):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import dataset, parquet
    from pyarrow.fs import FSSpecHandler, PyFileSystem

    fs = PyFileSystem(FSSpecHandler(pool.filesystem()))
    data = pyarrow.Table.from_pandas(table)
    parquet.write_table(data, "/t/a.parquet", filesystem=fs)
    assert parquet.read_table("/t/a.parquet", filesystem=fs).equals(data)
    dataset.write_dataset(data, "/t/parts", format="parquet", filesystem=fs, max_rows_per_file=100, max_rows_per_group=100)
    assert len(pool.listdir("/t/parts")) == 10
    assert dataset.dataset("/t/parts", filesystem=fs).to_table().num_rows == 1000


def test_polars(pool):
    polars = pytest.importorskip("polars")
    frame = polars.DataFrame({"a": [1, 2, 3]})
    with pool.open("/a.parquet", "wb") as f:
        frame.write_parquet(f)
    # polars' own readers know only their own URL schemes, but they read file objects.
    pool.write("/a.csv", b"a\n1\n2\n3\n")
    with pool.open("/a.csv", "rb") as f:
        assert polars.read_csv(f).equals(frame)
    with pool.open("/a.parquet", "rb") as f:
        assert polars.read_parquet(f).equals(frame)


def test_zarr(pool):
    zarr = pytest.importorskip("zarr", "3")
    store = zarr.storage.FsspecStore.from_url(URL + "/z")
    array = zarr.create_array(store, shape=(200, 200), chunks=(50, 50), dtype="f8")
    values = numpy.arange(40000.0).reshape(200, 200)
    array[:] = values
    again = zarr.open_array(zarr.storage.FsspecStore.from_url(URL + "/z", read_only=True), mode="r")
    assert (again[10:20, 190:] == values[10:20, 190:]).all() and (again[:] == values).all()
    assert len(pool.filesystem().find("/z/c")) == 16


def test_xarray(pool):
    xarray = pytest.importorskip("xarray")
    pytest.importorskip("zarr", "3")
    data = xarray.Dataset({"t": (("x", "y"), numpy.arange(600.0).reshape(20, 30))}, coords={"x": range(20)})
    data.to_zarr(URL + "/x.zarr", zarr_format=3, consolidated=False)
    again = xarray.open_zarr(URL + "/x.zarr", consolidated=False)
    xarray.testing.assert_identical(again.load(), data)


def test_dask(pool, table):
    pytest.importorskip("dask")
    import dask.array
    import dask.dataframe

    dask.dataframe.from_pandas(table, npartitions=4).to_parquet(URL + "/d")
    assert dask.dataframe.read_parquet(URL + "/d").p.sum().compute() == pytest.approx(500)
    values = dask.array.ones((100, 100), chunks=25)
    dask.array.to_zarr(values, URL + "/ones.zarr")
    assert dask.array.from_zarr(URL + "/ones.zarr").sum().compute() == 10000


def test_numpy_and_dlpack(pool):
    values = numpy.arange(1000.0)
    with pool.open("/a.npy", "wb") as f:
        numpy.save(f, values)
    with pool.open("/a.npy", "rb") as f:
        assert (numpy.load(f) == values).all()
    pool.write("/raw", values)
    chunk = pool.map("/raw", writable=True)
    assert chunk.__dlpack_device__() == (1, 0)
    shown = numpy.from_dlpack(chunk)
    assert shown.dtype == "u1" and shown.view("f8")[999] == 999
    # A read-only mapping stays read-only, or numpy refuses it if it can't express that.
    try:
        assert not numpy.from_dlpack(pool.map("/raw")).flags.writeable
    except BufferError:
        pass


def test_sizes_and_listings_are_never_stale(pool):
    one, other = pool.filesystem(), forebay.Pool("tests").filesystem()
    one.pipe("/d/f", b"1")
    assert other.size("/d/f") == 1 and other.ls("/d", detail=False) == ["/d/f"]
    for n in range(2, 20):
        with one.open("/d/f", "ab") as f:
            f.write(b"x")
        one.pipe("/d/g%d" % n, b"")
        assert other.size("/d/f") == n and len(other.ls("/d")) == n
    one.rm("/d", recursive=True)
    assert not other.exists("/d") and other.ls("/") == []


def test_a_transaction(pool):
    fs = pool.filesystem()
    with fs.transaction:
        with fs.open("/t/f", "wb") as f:
            f.write(b"all or nothing")
        assert not fs.exists("/t/f")
    assert fs.cat("/t/f") == b"all or nothing"
    with pytest.raises(RuntimeError), fs.transaction:
        with fs.open("/t/g", "wb") as f:
            f.write(b"x")
        raise RuntimeError
    assert fs.ls("/t", detail=False) == ["/t/f"]
