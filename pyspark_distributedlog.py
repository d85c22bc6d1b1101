"""Spark imports every top-level module named ``pyspark_*`` and registers its ``DefaultSource``.

That is how ``spark.read.format("distributedlog")`` is found where this package is installed. A module that
raises here would break every Python source of the session, so nothing is imported but the source itself.
"""

from distributedlog.spark.data_source import DistributedLogSource

DefaultSource = DistributedLogSource
