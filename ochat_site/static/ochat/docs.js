// Shows the OpenAPI description that the page names. A token typed in here is kept in memory alone.
"use strict";
const place = document.getElementById("docs");
SwaggerUIBundle({ url: place.dataset.description, domNode: place, deepLinking: true, persistAuthorization: false });
