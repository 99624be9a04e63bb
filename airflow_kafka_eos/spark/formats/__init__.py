"""Values of records from the columns of a DataFrame: ``value_format`` (:mod:`.settings`, :func:`.shaping.shape`)."""
