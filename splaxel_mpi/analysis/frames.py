"""Arrays as a table of pandas, where that is installed."""

from ..errors import UserError


def data_frame(columns, index, name):
    """A pandas.DataFrame.

    columns: name -> array of (rows,) or (rows, k), which becomes columns "<name>/0" ...
    "<name>/<k - 1>"; index: (rows,), called ``name``. Raises UserError without pandas.
    """
    try:
        import pandas
    except ImportError:
        raise UserError(
            "pandas is not installed: pip install pandas, or take the arrays as they are"
        ) from None
    flat = {}
    for title, array in columns.items():
        if array.ndim == 1:
            flat[title] = array
        else:
            array = array.reshape(len(array), -1)
            flat.update({f"{title}/{k}": array[:, k] for k in range(array.shape[1])})
    return pandas.DataFrame(flat, index=pandas.Index(index, name=name))
