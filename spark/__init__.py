"""Logs as Spark tables and streams: ``spark.read.format("distributedlog")`` and its way back.

Importing this loads neither pyspark nor the servers; the names below come on first use.
"""
