"""`/docs`: the API's reference, in Swagger UI."""
