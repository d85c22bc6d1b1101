"""Register the data source. Spark imports every top-level module named ``pyspark_*``.

Spark registers the ``DefaultSource`` of such a module, so ``spark.read.format("distributedlog")`` works if
this package is installed. An exception here would break every Python source of the session, so this module
imports only the source itself.
"""

from distributedlog.spark.data_source import DistributedLogSource

DefaultSource = DistributedLogSource
